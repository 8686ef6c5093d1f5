"""Bayesian neural networks with fewer parameters than the network itself.

>>> import torch, bnn
>>> net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
>>> bnn.bayesianize_(net, inference="inducing", inducing_rows=16, inducing_cols=16)
>>> net(torch.randn(5, 64)).shape
torch.Size([5, 10])
"""

from bnn import calibration, distributions, nn
from bnn.bayesianize import bayesianize_
from bnn.nn.draw import frozen_draw
