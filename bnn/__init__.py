"""Bayesian neural networks with fewer parameters than the network itself.

>>> import torch, bnn
>>> net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
>>> bnn.bayesianize_(net, inference="inducing", inducing_rows=16, inducing_cols=16)
>>> net(torch.randn(5, 64)).shape
torch.Size([5, 10])
"""

from bnn import calibration, distributions, likelihoods, nn
from bnn.bayesianize import bayesianize_
from bnn.config import load_config
from bnn.files import FileFormatError, load_, save
from bnn.global_inducing import register_global_inducing_weights_
from bnn.legacy import load_legacy_
from bnn.nn.draw import frozen_draw
from bnn.objective import ELBO, ELBOResult, kl_divergence
from bnn.passes import FoldingWarning
from bnn.prediction import draws, predict, set_sampling_
from bnn.rates import parameter_groups
from bnn.sizes import parameter_count
