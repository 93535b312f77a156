// Selects the layers whose routed experts a GPU keeps in tight tiles (ops/pack_weight/tight.h): all of a layer or none.
#pragma once

#include "base/thread_pool.h"
#include "model/deepseek_v4/schema/weights.h"

namespace dsv4::deepseek_v4 {

// Sets the tight format and exponents of experts in host memory, in layers in which every expert can be tight. It reads
// the block scales of such layers with `pool`'s threads (null: this one). In other layers it stops at the first expert
// that cannot.
void UseTightTiles(ThreadPool* pool, Weights* weights);

// Restores the format of rows of all experts.
void UseWideTiles(Weights* weights);

}  // namespace dsv4::deepseek_v4
