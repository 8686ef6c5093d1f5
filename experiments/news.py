"""AG News as word indices, and a 1-D convolutional network that reads it."""

from __future__ import annotations

import collections
import csv
import lzma
import re

import torch
from torch import Tensor, nn

from bnn.data import Data, Part
from experiments.data import data_file

WORDS, LENGTH = 8000, 48  # indices 0: padding, 1: any other word
TRAIN, VALIDATION, TEST = 5000, 600, 2000  # of the 7,600 texts, in an order fixed by a seed
CLASSES = ("world", "sports", "business", "science")


def news() -> Data:
    """5,000 training, 600 validation and 2,000 test texts; the words are the most frequent of the training texts."""
    with lzma.open(data_file("ag_news_test.csv.xz"), "rt", encoding="utf-8") as file:
        rows = [(int(row[0]) - 1, re.findall(r"[a-z0-9]+", f"{row[1]} {row[2]}".lower())) for row in csv.reader(file)]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [rows[i] for i in order]
    counts = collections.Counter(word for _, words in rows[:TRAIN] for word in words)
    index = {word: i + 2 for i, (word, _) in enumerate(counts.most_common(WORDS - 2))}
    ids = torch.zeros(len(rows), LENGTH, dtype=torch.long)
    for i, (_, words) in enumerate(rows):
        known = [index.get(word, 1) for word in words[:LENGTH]]
        ids[i, : len(known)] = torch.tensor(known)
    labels = torch.tensor([label for label, _ in rows])
    last = TRAIN + VALIDATION
    train, validation, test = (Part(ids[a:b], labels[a:b]) for a, b in [(0, TRAIN), (TRAIN, last), (last, last + TEST)])
    return Data("ag_news", "classification", train, test, validation, classes=CLASSES)


class NewsNet(nn.Module):
    """Word indices (N, L) to logits (N, 4): an embedding, two 1-D convolutions, the largest over positions."""

    def __init__(self, width: int = 64, channels: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width, padding_idx=0)
        nn.init.normal_(self.embedding.weight, std=0.1)  # of 1, few texts are learned by heart
        self.conv1 = nn.Conv1d(width, channels, 3, padding=1)
        self.conv2 = nn.Conv1d(channels, channels, 3, padding=1)
        self.noise, self.dropout = nn.Dropout(0.3), nn.Dropout(0.5)
        self.linear = nn.Linear(channels, len(CLASSES))

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.relu(self.conv1(self.noise(self.embedding(ids)).transpose(1, 2)))
        return self.linear(self.dropout(torch.relu(self.conv2(h)).amax(2)))
