"""Print the attention entropy of every head of a model: python examples/measure_a_model.py --model FOLDER"""

import argparse

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from joma.probes import collect


def main() -> None:
    """Print one line per layer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder, or a model of the hub; without it a random GPT-2")
    parser.add_argument("--length", type=int, default=64)
    options = parser.parse_args()
    torch.manual_seed(0)
    small = GPT2Config(vocab_size=100, n_positions=options.length, n_embd=32, n_layer=2, n_head=4, bos_token_id=0)
    model = AutoModelForCausalLM.from_pretrained(options.model) if options.model else GPT2LMHeadModel(small)
    tokens = torch.randint(model.config.vocab_size, (2, options.length))
    with torch.no_grad(), collect(model) as probe:
        model(input_ids=tokens)
    for layer, heads in zip(probe.layers, probe.mean_entropy(), strict=True):
        print(f"{layer}: entropy by head {[round(head, 2) for head in heads.tolist()]} nats")


if __name__ == "__main__":
    main()
