"""`pumasi run --framework paddle`: PaddlePaddle's collective training (paddle.distributed)."""

from __future__ import annotations

from pumasi.core.frameworks.base import Framework, Gang, Package, host, port
from pumasi.core.ranks import Rank


class Paddle(Framework):
    name = "paddle"
    synonyms = ("paddlepaddle",)
    modules = ("paddle",)
    starts = ("paddle.distributed",)
    joins = ("paddle.distributed.init_parallel_env",)
    packages = (Package("paddlepaddle", ("paddlepaddle-gpu",), is_large=True),)

    def environment(self, gang: Gang, rank: Rank) -> dict[str, str]:
        endpoints = [f"{host(each.rank)}:{port(each.rank)}" for each in gang.table.ranks]
        return {
            "PADDLE_TRAINER_ID": str(rank.rank),
            "PADDLE_TRAINERS_NUM": str(gang.processes),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoints[rank.rank],
        }


PADDLE = Paddle()
