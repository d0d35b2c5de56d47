"""A network and a callback for Lightning's Trainer."""

import torch
from lightning.pytorch import Callback, LightningModule
from networks import loss_of, made


class Network(LightningModule):
    """The small model with dropout, batch norm and counters, trained by Adam."""

    def __init__(self, spoil_at=None, fail_at=None):
        super().__init__()
        self.net, self.spoil_at, self.fail_at = made(), spoil_at, fail_at
        self.losses = []  # of every batch

    def forward(self, ids):
        return self.net(ids)

    def training_step(self, batch, at):
        if at == self.fail_at:
            raise RuntimeError("something of the user's own")
        if at == self.spoil_at:
            with torch.no_grad():
                self.net.h[1].attn.qkv.weight.mul_(1e4)
        loss = loss_of(self.net, batch)
        self.losses.append(float(loss.detach()))
        return loss

    def validation_step(self, batch, at):
        self.log("val_loss", loss_of(self.net, batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Checked(Callback):
    """What the monitor had counted at every validation."""

    def __init__(self, watch):
        self.watch, self.seen, self.losses = watch, [], []

    def on_train_end(self, trainer, pl_module):
        self.losses = pl_module.losses

    def on_validation_end(self, trainer, pl_module):
        self.seen.append(None if self.watch.monitor is None else self.watch.monitor.step_number)
