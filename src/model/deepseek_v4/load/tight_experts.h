// Which layers' routed experts a GPU keeps in tight tiles (ops/pack_weight/tight.h): all of a layer's, or none.
#pragma once

#include "base/thread_pool.h"
#include "model/deepseek_v4/schema/weights.h"

namespace dsv4::deepseek_v4 {

// Gives experts in host memory, of layers in which every one can be tight, their tight format and exponents. Reads the
// block scales of such layers, by `pool`'s threads (null: this one); of others it stops at the first that does not fit.
void UseTightTiles(ThreadPool* pool, Weights* weights);

// Gives all their format of rows back.
void UseWideTiles(Weights* weights);

}  // namespace dsv4::deepseek_v4
