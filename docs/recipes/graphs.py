"""A model on graphs, whose batches are objects: each rank selects its own graphs.

Run it as `dpbench sweep --arch graphs.py:make --gpus 2`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Graphs:
    """A batch of graphs as one graph, whose nodes are those of the first graph, the second, …"""

    def __init__(self, nodes: Tensor, edges: Tensor, sizes: Tensor) -> None:
        self.nodes = nodes  # (nodes, features)
        self.edges = edges  # (edges, 2): indices of nodes
        self.sizes = sizes  # (graphs,): number of nodes in each graph

    def __len__(self) -> int:
        return len(self.sizes)

    def select(self, indices: Tensor) -> Graphs:
        ends = self.sizes.cumsum(0)
        graphs = []
        for index in indices.tolist():
            end = int(ends[index])
            start = end - int(self.sizes[index])
            inside = (self.edges[:, 0] >= start) & (self.edges[:, 0] < end)
            sizes = self.sizes[index : index + 1]
            graphs.append(Graphs(self.nodes[start:end], self.edges[inside] - start, sizes))
        return joined(graphs)

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Graphs:
        return Graphs(self.nodes.to(device, dtype), self.edges.to(device), self.sizes.to(device))


def joined(graphs: list[Graphs]) -> Graphs:
    sizes = torch.cat([graph.sizes for graph in graphs])
    starts = (sizes.cumsum(0) - sizes).tolist()
    edges = [graph.edges + start for graph, start in zip(graphs, starts, strict=True)]
    return Graphs(torch.cat([graph.nodes for graph in graphs]), torch.cat(edges), sizes)


class GraphNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(8, 8)
        self.readout = nn.Linear(8, 1)

    def forward(self, graphs: Graphs) -> Tensor:
        source, target = graphs.edges.T
        messages = self.message(graphs.nodes[source]).relu()
        nodes = graphs.nodes.index_add(0, target, messages)
        graph = torch.arange(len(graphs), device=nodes.device).repeat_interleave(graphs.sizes)
        return self.readout(nodes.new_zeros(len(graphs), 8).index_add(0, graph, nodes))


def batch(n: int, generator: torch.Generator | None = None) -> tuple[Graphs, Tensor]:
    graphs = []
    for size in torch.randint(3, 9, (n,), generator=generator).tolist():
        nodes = torch.randn(size, 8, generator=generator)
        edges = torch.randint(size, (2 * size, 2), generator=generator)
        graphs.append(Graphs(nodes, edges, torch.tensor([size])))
    return joined(graphs), torch.randn(n, 1, generator=generator)


def make():
    return GraphNetwork(), batch, nn.functional.mse_loss
