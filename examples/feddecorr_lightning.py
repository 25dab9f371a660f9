"""FedDecorr added to a Lightning module: one line, with nothing of the library but a loss.

    pip install lightning
    python examples/feddecorr_lightning.py

trains the same module with and without the term, and prints how strongly the features of new samples correlate: the
mean of r² over all pairs of features. FedMR's term is added in the same way, as
`intra_class_decorrelation(z, y, CLASSES)`.
"""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fullrank.objectives import decorrelation

CLASSES, INPUTS, WIDTH = 4, 32, 64


class Classifier(lightning.LightningModule):
    """A perceptron whose training step adds FedDecorr's term with the weight `beta`."""

    def __init__(self, beta):
        super().__init__()
        self.beta = beta
        self.backbone = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def training_step(self, batch, index):
        x, y = batch
        z = self.backbone(x)
        return cross_entropy(self.head(z), y) + self.beta * decorrelation(z)  # FedDecorr is the second term

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def samples(number, seed):
    """Samples around the centres of four classes."""
    centres = torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (number,), generator=generator)
    return centres[y] + 0.5 * torch.randn(number, INPUTS, generator=generator), y


def train(beta, steps=150):
    lightning.seed_everything(0, verbose=False)
    model = Classifier(beta)
    loader = DataLoader(TensorDataset(*samples(1024, seed=1)), batch_size=64, shuffle=True)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    lightning.Trainer(max_steps=steps, max_epochs=-1, accelerator="cpu", devices=1, **quiet).fit(model, loader)
    return model


@torch.no_grad()
def correlation(z):
    """The mean of r² over all pairs of different features."""
    squares = torch.corrcoef(z.T).nan_to_num().square()
    return ((squares.sum() - squares.diagonal().sum()) / (WIDTH * (WIDTH - 1))).item()


def main():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    x, _ = samples(1024, seed=3)
    found = {}
    for name, beta in (("cross-entropy", 0.0), ("with FedDecorr", 0.1)):
        found[name] = correlation(train(beta).backbone(x))
        print(f"{name}: mean r² {found[name]:.3f}")
    return found


if __name__ == "__main__":
    main()
