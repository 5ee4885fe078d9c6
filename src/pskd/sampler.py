"""The order of the data for a loop of one's own: a pure function of (seed, epoch), the same for all processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sized

import torch.distributed as dist
from torch.utils.data import Sampler

from pskd.errors import PskdError
from pskd.plan import epoch_plan, step_edges
from pskd.settings import Count, check_arguments

__all__ = ["EpochSampler"]


class EpochSampler(Sampler[list[int]]):
    """Batches of sample indices in which a bank's records never travel: ``DataLoader(data, batch_sampler=...)``.

    Every sample comes once in an epoch, and all processes have the same number of batches: nothing is repeated to even
    them out. Sample i is always on host ``i % hosts``, whose processes share one bank; on one host this is the plain
    shuffle of all samples. The step s of all processes together has the same samples however many processes of a host
    share them, as long as ``batch_size * num_replicas`` stays the same; only a last batch that is too small for two
    samples a process joins the one before it.

    Args:
        samples: the training set, or how many samples it has.
        batch_size: of this process, as of a DataLoader.
        seed: of the run; with the epoch, it is all that the order depends on.
        num_replicas: processes; by default those of torch.distributed.
        rank: which of them this is; by default what torch.distributed says.
        hosts: machines with as many processes each; by default those of torchrun (GROUP_WORLD_SIZE).

    ``host`` and ``hosts`` are what the bank wants: ``PredictionBank(..., host=sampler.host, hosts=sampler.hosts)``.
    """

    def __init__(
        self,
        samples: Sized | int,
        batch_size: Count,
        seed: int = 0,
        *,
        num_replicas: Count | None = None,
        rank: int | None = None,
        hosts: Count | None = None,
    ) -> None:
        check_arguments(EpochSampler.__init__, locals())
        together = dist.is_available() and dist.is_initialized()
        if num_replicas is None:
            num_replicas = dist.get_world_size() if together else 1
            hosts = hosts or (int(os.environ.get("GROUP_WORLD_SIZE", 1)) if num_replicas > 1 else 1)
        if rank is None:
            rank = dist.get_rank() if together else 0
        self.num_samples = samples if isinstance(samples, int) else len(samples)
        self.batch_size, self.seed, self.num_replicas, self.rank = batch_size, seed, num_replicas, rank
        self.hosts = hosts or 1
        if not 0 <= rank < num_replicas or num_replicas % self.hosts:
            raise PskdError(
                f"rank={rank}, num_replicas={num_replicas}, hosts={self.hosts}: a rank lies in 0..num_replicas - 1, and"
                " every host has the same number of processes"
            )
        self.host, self._local_rank = divmod(rank, num_replicas // self.hosts)
        self._epoch = self._start = 0
        if self.hosts > 1 and batch_size == 1:
            raise PskdError("batch_size=1: hosts share a step but for rounding, so several need 2 samples or more each")
        # Shares of hosts are rounded down: one sample more makes sure of two for each process.
        self._smallest = 2 * num_replicas + (self.hosts if self.hosts > 1 else 0)
        if self.num_samples < self._smallest and num_replicas > 1:
            raise PskdError(
                f"samples: {self.num_samples} are too few for {num_replicas} processes, at least {self._smallest};"
                " take fewer"
            )

    @property
    def sampler(self) -> EpochSampler:
        """Itself: frameworks look here for ``set_epoch``."""
        return self

    def set_epoch(self, epoch: int, start_step: int = 0) -> None:
        """The next iteration is that of the 0-based ``epoch``, without the ``start_step`` steps that are done already.

        After an interruption: ``set_epoch(epoch, steps_done)``. Without this call, every iteration is that of epoch 0.
        """
        if start_step < 0 or epoch < 0:
            raise PskdError(f"set_epoch({epoch}, {start_step}): both count from 0")
        self._epoch, self._start = epoch, start_step

    def __len__(self) -> int:
        """Steps that the next iteration has."""
        edges = step_edges(self.num_samples, self.batch_size * self.num_replicas, self._smallest)
        return max(0, len(edges) - 1 - self._start)

    def __iter__(self) -> Iterator[list[int]]:
        steps = epoch_plan(
            self.num_samples,
            self.batch_size * self.num_replicas,
            1,
            self.seed,
            self._epoch,
            rank=self._local_rank,
            world=self.num_replicas // self.hosts,
            host=self.host,
            hosts=self.hosts,
            smallest=self._smallest,
        )
        for step in steps[self._start :]:
            yield step.parts[0].tolist()
