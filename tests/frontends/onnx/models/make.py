"""Small networks of torch as ONNX models."""

import pathlib
import sys
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(0)
out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n, self.b, self.m = (
            nn.Conv2d(3, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.BatchNorm2d(6),
        )
        self.s, self.f = nn.Conv2d(3, 6, 1), nn.Linear(6, 4)
        for norm in (self.n, self.m):
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        y = self.m(self.b(torch.relu(self.n(self.a(x)))))
        return torch.softmax(self.f(torch.relu(y + self.s(x)).mean((2, 3))), 1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o, self.n = *(nn.Linear(16, 16) for _ in range(4)), nn.LayerNorm(16)

    def forward(self, x):
        def heads(t):
            return t.view(-1, 6, 4, 4).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        a = torch.softmax(q @ k.transpose(-1, -2) / 2.0, -1) @ v
        return self.n(x + self.o(a.transpose(1, 2).reshape(-1, 6, 16)))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.a, self.b = nn.Embedding(30, 8), nn.Linear(32, 16), nn.Linear(16, 30)

    def forward(self, ids):
        return self.b(torch.tanh(self.a(self.e(ids).view(ids.size(0), -1))))


class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.d, self.u, self.o = (
            nn.Conv2d(2, 4, 3, padding=1),
            nn.ConvTranspose2d(4, 3, 2, stride=2),
            nn.Conv2d(7, 1, 1),
        )

    def forward(self, x):
        d = nn.functional.max_pool2d(nn.functional.leaky_relu(self.d(x), 0.1), 2)
        return self.o(torch.cat([self.u(d), nn.functional.interpolate(d, scale_factor=2, mode="nearest")], 1))


class Gates(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.h = nn.Linear(5, 18), nn.Linear(6, 18)

    def forward(self, x):
        hidden = torch.zeros(x.size(0), 6)
        for step in range(3):
            r, z, n = self.w(x[:, step]).chunk(3, 1)
            hr, hz, hn = self.h(hidden).chunk(3, 1)
            z = torch.sigmoid(z + hz)
            hidden = (1 - z) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + z * hidden
        return hidden


class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, groups=4, stride=2),
            nn.ReLU6(),
            nn.Conv2d(4, 8, 1),
            nn.Hardswish(),
            nn.AvgPool2d(2),
        )
        self.f = nn.Linear(8 * 2 * 2, 3)

    def forward(self, x):
        return self.f(torch.flatten(self.a(x), 1))


class Machine(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.l = nn.Embedding(20, 4), nn.Linear(16, 1)

    def forward(self, ids):
        v = self.e(ids)
        pairs = 0.5 * (v.sum(1) ** 2 - (v**2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.l(v.flatten(1)) + pairs)


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.i, self.p = nn.Conv2d(2, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.PReLU(6)

    def forward(self, x):
        return torch.clamp(self.p(self.i(self.c(x))), -1.5, 1.5).amax((2, 3))


models = {
    "dense": (
        nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)),
        torch.randn(4, 13),
    ),
    "residual": (Residual(), torch.randn(2, 3, 8, 8)),
    "attention": (Attention(), torch.randn(3, 6, 16)),
    "words": (Words(), torch.randint(30, (5, 4))),
    "upsampling": (Up(), torch.randn(2, 2, 8, 8)),
    "gates": (Gates(), torch.randn(4, 3, 5)),
    "depthwise": (Depthwise(), torch.randn(2, 4, 8, 8)),
    "machine": (Machine(), torch.randint(20, (6, 4))),
    "norms": (Norms(), torch.randn(2, 2, 6, 6)),
    "activations": (
        nn.Sequential(
            nn.Linear(6, 12),
            nn.ELU(),
            nn.Linear(12, 12),
            nn.Softplus(),
            nn.Linear(12, 12),
            nn.Hardsigmoid(),
            nn.Linear(12, 5),
            nn.LogSoftmax(1),
        ),
        torch.randn(3, 6),
    ),
}
for name, (net, x) in models.items():
    net.eval()
    dyn = {"x": {0: "rows"}}
    torch.onnx.export(
        net,
        (x,),
        out / f"{name}.onnx",
        input_names=["x"],
        output_names=["y"],
        dynamic_axes=dyn,
        opset_version=17,
        dynamo=False,
    )
    print(name, net(x).shape)
