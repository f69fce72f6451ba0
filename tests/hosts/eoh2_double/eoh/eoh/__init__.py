from .eoh import EOH as EOH
