"""transformers' DeepSeek-V4 in float64 on a CPU. install_transformers.py installs the packages.

It computes layers and head, from unpacked values of any format. It skips draft modules (`mtp.*`) and does not round
cached rows. RoPE, the softmax of the compressors, index scores, router and hyper-connections are always float32, so
values are accurate to about 5e-6.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4ForCausalLM

import formats

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "nano"))
from checkpoint import official_name  # noqa: E402  (needs the line above)

NAME = f"transformers {transformers.__version__}"


def configuration(fields):
    """Returns transformers' configuration of the fields of an official config.json."""
    fields = {name: value for name, value in fields.items() if name != "quantization_config"}
    fields["compress_ratios"] = fields["compress_ratios"][:fields["num_hidden_layers"]]
    config = DeepseekV4Config(**fields)
    config._experts_implementation = config._attn_implementation = "eager"  # the others do not compute in float64
    return config


def values(tensors, official):
    """Returns the values of a parameter, by its official name."""
    name = official.removesuffix(".weight")
    return formats.unpack(tensors, name) if name != official else formats.unpack_plain(tensors[official])


def expert_stack(tensors, name, count):
    """Returns the stack of all experts: w1 and then w3 for gate_up_proj, w2 for down_proj."""
    layer = name.split(".")[2]
    parts = ("w2",) if "down_proj" in name else ("w1", "w3")
    return np.stack([np.concatenate([formats.unpack(tensors, f"layers.{layer}.ffn.experts.{e}.{part}")
                                     for part in parts]) for e in range(count)])


class TransformersModel:
    @torch.no_grad()
    def __init__(self, config, tensors):
        self.model = DeepseekV4ForCausalLM(configuration(config)).double().eval()
        for name, target in self.model.state_dict().items():
            if ".mlp.experts." in name:
                source = expert_stack(tensors, name, len(target))
            else:
                source = values(tensors, official_name(name))
            target.copy_(torch.from_numpy(source.copy()).reshape(target.shape))

    @torch.no_grad()
    def run(self, ids):
        """Returns (logits [T, V], streams after each layer [L][T, H, D]) of a text."""
        streams = []
        hooks = [layer.register_forward_hook(lambda module, inputs, output: streams.append(output[0].double().numpy()))
                 for layer in self.model.model.layers]
        logits = self.model(torch.tensor([list(map(int, ids))]), use_cache=False).logits[0].double().numpy()
        for hook in hooks:
            hook.remove()
        return logits, streams
