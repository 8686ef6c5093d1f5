"""The posteriors q(U) of the inducing family, one file each. Every file of this folder is read and registers its class.

U is (M_out, M_in). When whitened, its prior is N(0, I) and `prior` is None; else MN(0, L_r L_r^T, L_c L_c^T).
"""

import importlib
import pkgutil

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")
