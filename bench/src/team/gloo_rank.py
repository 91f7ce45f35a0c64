"""One rank of torch.distributed over Gloo, as a peer of gradlane-bench: obeys the same orders, see orders.rs and buffers.rs."""

import json
import os
import sys
import time

PERIOD = 7
UNTOUCHED = 0xA5


def wire_bytes(interface):
    """Bytes that the network interface received and sent."""
    with open("/proc/self/net/dev", encoding="utf-8") as lines:
        for line in lines:
            name, _, counts = line.partition(":")
            if name.strip() == interface:
                counts = counts.split()
                return int(counts[0]), int(counts[8])
    raise RuntimeError(f"there is no network interface {interface}")


class Rank:
    def __init__(self, order):
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank, self.ranks = order["rank"], order["ranks"]
        given = order["with"]
        self.interface = given.get("interface", "lo")
        os.environ["GLOO_SOCKET_IFNAME"] = self.interface
        torch.set_num_threads(1)
        store = dist.TCPStore(
            given["host"], int(given["port"]), self.ranks, self.rank == 0, wait_for_workers=False
        )
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.ranks)
        self.ops = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
        # The newer names come first, because the older ones warn at every call where both exist.
        self.reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        self.all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def contribution(self, elements, rank, tensor, start, first=0):
        """What a rank contributes, from its element `first` on: see buffers.rs."""
        period = [(first + i + 3 * rank + 5 * tensor + start) % PERIOD - 3 for i in range(PERIOD)]
        return self.repeated(period, elements)

    def repeated(self, period, elements):
        torch = self.torch
        if self.dtype == torch.uint8:
            period = [value % 256 for value in period]
        small = torch.tensor(period, dtype=self.dtype)
        return small.repeat(elements // PERIOD + 1)[:elements]

    def reduced(self, elements, tensor, start, first):
        wrap = 256 if self.dtype == self.torch.uint8 else None
        values = []
        for i in range(PERIOD):
            all_ranks = [(first + i + 3 * rank + 5 * tensor + start) % PERIOD - 3 for rank in range(self.ranks)]
            if wrap:
                all_ranks = [value % wrap for value in all_ranks]
            values.append({"sum": sum, "min": min, "max": max, "broadcast": lambda of: of[0]}[self.op](all_ranks))
        return self.repeated(values, elements)

    def prepare(self, case):
        self.sets = self.results = None
        self.dtype = getattr(self.torch, case["dtype"])
        self.op, self.collective = case["op"], case["collective"]
        self.tensors = [tensor["elements"] for tensor in case["tensors"]]
        self.sets = [[None] * len(self.tensors) for _ in range(case["sets"])]
        # An all-reduce is in place; the other collectives are not.
        self.results = self.sets
        if self.collective != "all-reduce":
            self.results = [[self.torch.empty(of, dtype=self.dtype) for of in self.tensors] for _ in self.sets]
        for start in range(len(self.sets)):
            self.fill(start)

    def fill(self, start):
        for tensor, elements in enumerate(self.tensors):
            contribution = self.contribution(elements, self.rank, tensor, start)
            if self.sets[start][tensor] is None:
                self.sets[start][tensor] = contribution
            else:
                self.sets[start][tensor].copy_(contribution)
            if self.results is not self.sets:
                self.bytes(self.results[start][tensor]).fill_(UNTOUCHED)

    def exchange(self, start):
        pairs = zip(self.results[start], self.sets[start])
        if self.collective == "reduce-scatter":
            op = self.ops[self.op]
            works = [self.reduce_scatter(self.own(to), of, op=op, async_op=True) for to, of in pairs]
        elif self.collective == "all-gather":
            works = [self.all_gather(to, self.own(of), async_op=True) for to, of in pairs]
        elif self.collective == "all-to-all":
            works = [self.dist.all_to_all_single(to, of, async_op=True) for to, of in pairs]
        elif self.op == "broadcast":
            works = [self.dist.broadcast(tensor, 0, async_op=True) for tensor in self.sets[start]]
        else:
            works = [self.dist.all_reduce(tensor, self.ops[self.op], async_op=True) for tensor in self.sets[start]]
        for work in works:
            work.wait()

    def own(self, tensor):
        """This rank's part of a tensor."""
        part = len(tensor) // self.ranks
        return tensor[self.rank * part : (self.rank + 1) * part]

    def bytes(self, tensor):
        return tensor.view(self.torch.uint8)

    def due(self, elements, tensor, start):
        """The pieces of a result: the place of each, and its elements; see collective.rs."""
        part, mine = elements // self.ranks, self.rank * (elements // self.ranks)
        if self.collective == "all-reduce":
            return [(0, self.reduced(elements, tensor, start, 0))]
        if self.collective == "reduce-scatter":
            return [(mine, self.reduced(part, tensor, start, mine))]
        pieces = []
        for origin in range(self.ranks):
            first = origin * part if self.collective == "all-gather" else mine
            pieces.append((origin * part, self.contribution(part, origin, tensor, start, first)))
        return pieces

    def verify(self, start):
        wrong, first = 0, None
        for tensor, result in enumerate(self.results[start]):
            # What lies before, between and behind the pieces must be as it was.
            end, untouched = 0, []
            for begin, due in self.due(len(result), tensor, start):
                untouched.append((end, begin))
                end = begin + len(due)
                found = result[begin:end]
                if not self.torch.equal(found, due):
                    at = (found != due).nonzero().flatten()
                    wrong += len(at)
                    if len(at) and first is None:
                        i = int(at[0])
                        where = f"rank {self.rank}, tensor {tensor}, element {begin + i}"
                        first = f"{where} is {found[i]} instead of {due[i]}"
            for begin, end in [*untouched, (end, len(result))]:
                touched = int((self.bytes(result[begin:end]) != UNTOUCHED).sum())
                if touched:
                    wrong += touched
                    first = first or f"rank {self.rank}, tensor {tensor}: {touched} bytes from {begin} on were to stay"
        return wrong, first

    def repeat(self, order):
        measured = {"seconds": [], "cpu_seconds": 0.0, "sent_bytes": 0, "received_bytes": 0, "wrong": 0, "wrong_at": None}
        for index in range(order["warmup"]):
            self.exchange(index % len(self.sets))
            if order["check"]:
                self.fill(index % len(self.sets))
        meeting = self.torch.zeros(1)
        left = order["iterations"]
        while left > 0:
            batch = min(left, len(self.sets)) if order["check"] else left
            left -= batch
            received, sent = wire_bytes(self.interface)
            self.dist.all_reduce(meeting)
            cpu = time.process_time()
            for index in range(batch):
                begun = time.perf_counter()
                self.exchange(index % len(self.sets))
                measured["seconds"].append(time.perf_counter() - begun)
            measured["cpu_seconds"] += time.process_time() - cpu
            received_now, sent_now = wire_bytes(self.interface)
            measured["received_bytes"] += received_now - received
            measured["sent_bytes"] += sent_now - sent
            for index in range(batch if order["check"] else 0):
                wrong, first = self.verify(index)
                measured["wrong"] += wrong
                measured["wrong_at"] = measured["wrong_at"] or first
                self.fill(index)
        return measured


def main():
    # What libraries print must not be taken for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    rank = None
    for line in sys.stdin:
        order = json.loads(line)
        answer = {"is": "done"}
        try:
            if order["do"] == "join":
                rank = Rank(order)
            elif order["do"] == "prepare":
                rank.prepare(order)
            elif order["do"] == "repeat":
                answer = {"is": "measured", **rank.repeat(order)}
            elif order["do"] == "usage":
                answer = {"is": "usage", "cpu_seconds": time.process_time()}
        except Exception as error:
            answer = {"is": "failed", "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    if rank is not None:
        rank.dist.destroy_process_group()


main()
