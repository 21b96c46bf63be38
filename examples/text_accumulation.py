"""Tokenised text from an own DataLoader: sentences of any length, a collate function, gradients over four batches."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import paceline

WORDS = ["film", "plot", "the", "was", "and", "very", "good", "great", "fine", "bad", "poor", "dull"]
EPOCHS, ACCUMULATED = 3, 4


class Reviews(Dataset):
    """Sentences of 3 to 20 words as token numbers from 1; positive with more good words than bad ones."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 21, (samples,), generator=generator).tolist()
        self.sentences = [torch.randint(1, len(WORDS) + 1, (length,), generator=generator) for length in lengths]

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        tokens = self.sentences[index]
        return tokens, int((tokens > 9).sum() < ((tokens > 6) & (tokens <= 9)).sum())


def collate(samples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    tokens, labels = zip(*samples, strict=True)
    return {"tokens": pad_sequence(list(tokens), batch_first=True), "labels": torch.tensor(labels)}


def net() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(len(WORDS) + 1, 16, mode="sum", padding_idx=0), nn.Linear(16, 2))


def train(worker: paceline.Worker) -> None:
    model = net()
    loader = DataLoader(Reviews(2000, seed=0), batch_size=16, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader, 1):
            loss = F.cross_entropy(model(batch["tokens"]), batch["labels"]) / ACCUMULATED
            loss.backward()
            if number % ACCUMULATED == 0:  # what is left at the end of an epoch is pushed by itself
                optimizer.step(loss * ACCUMULATED)
                optimizer.zero_grad()


def evaluate(state: dict[str, Tensor]) -> float:
    model = net()
    model.load_state_dict(state)
    test = Reviews(400, seed=1)
    batch = collate([test[index] for index in range(len(test))])
    return float((model(batch["tokens"]).argmax(1) == batch["labels"]).float().mean())


if __name__ == "__main__":
    result = paceline.launch(train, workers=3, policy="asp", epochs=EPOCHS, slowdown={2: 3.0}, evaluate=evaluate)
    accuracy = result.evaluations[-1].figures["accuracy"]
    print(f"accuracy {accuracy:.1%} after {result.samples} samples in {result.summary.updates} updates")
