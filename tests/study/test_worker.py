"""The command that runs a study, and what ends it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pskd.errors import PskdError
from pskd.workbench.study import worker
from pskd.workbench.study.cells import Study, StudyFile
from pskd.workbench.study.queue import Queue


class IdleCrew:
    """Workers that leave without having done anything, after the study was asked to stop or not."""

    def __init__(self, study: Study, count: int, storage: str | None, patience: float) -> None:
        self.study, self.looks = study, 0

    def start(self) -> None: ...

    def alive(self) -> int:
        return 0

    def stop(self) -> None: ...

    def log(self, number: int) -> Path:
        return self.study.folder / f"worker-{number}.log"


class StoppedCrew(IdleCrew):
    def alive(self) -> int:
        Queue(self.study).stop()
        return 0


class UnawareCrew(IdleCrew):
    """Its workers began after the stop was asked for."""

    def alive(self) -> int:
        Queue(self.study).stop()
        return 1


@pytest.mark.parametrize(
    ("crew", "error"), [(StoppedCrew, KeyboardInterrupt), (UnawareCrew, KeyboardInterrupt), (IdleCrew, PskdError)]
)
def test_a_stop_that_was_asked_for_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crew: Any, error: type[BaseException]
) -> None:
    monkeypatch.setattr(worker, "Crew", crew)
    study = Study.of("mine", StudyFile(about="", recipe="digits", axes={"seed": [0]}), tmp_path)
    with pytest.raises(error):
        worker.run(study, 1, None, lambda line: None)


def test_workers_are_out_of_reach_of_ctrl_c_but_not_of_nice(tmp_path: Path) -> None:
    study = Study.of("mine", StudyFile(about="", recipe="digits", axes={"seed": [0]}), tmp_path)
    study.save()
    crew = worker.Crew(study, 1, None)
    crew.start()
    try:
        pid = crew.processes[0].pid
        assert (os.getsid(pid), os.getpgid(pid)) == (os.getsid(0), pid)
    finally:
        crew.stop()
