from .evaluate import Evaluation
from .modify_code import ModifyCode

__all__ = ["Evaluation", "ModifyCode"]
