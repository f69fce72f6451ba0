from dataclasses import dataclass, field


@dataclass
class LLMConfig:
    api_endpoint: str = None
    api_key: str = None
    model: str = None
    use_local: bool = False
    local_url: str = None
    timeout: int = 180


@dataclass
class EoHConfig:
    llm: LLMConfig = field(default_factory=LLMConfig)
    pop_size: int = 5
    n_pop: int = 20
    operators: list = field(default_factory=lambda: ["e1", "e2", "m1", "m2"])
    operator_weights: list = None
    n_parents: int = 2
    output_dir: str = "./"
    debug: bool = False
    use_seed: bool = False
    seed_path: str = "./seeds/seeds.json"
    use_continue: bool = False
    continue_path: str = "./results/pops/population_generation_0.json"
    continue_id: int = 0

    def __post_init__(self):
        self.operator_weights = self.operator_weights or [1.0] * len(self.operators)
