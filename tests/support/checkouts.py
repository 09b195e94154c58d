"""Small copies of the file layout of tau-bench and tau2-bench, with our own tools and tasks.

Their top-level modules raise, because no code may run them. The other modules need only the standard library and
pydantic.
"""

import sys
import textwrap
from pathlib import Path

TOP = 'raise ImportError("the top module of a package is not to be run")\n'


_PACKAGES = ("tau_bench", "tau2", "bfcl_eval", "env")


def write_checkout(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return root


def forget_checkouts() -> None:
    """Remove the modules of checkouts, so that another one can be imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]:
        del sys.modules[name]


TAU_BENCH = {
    "tau_bench/__init__.py": TOP,
    "tau_bench/envs/__init__.py": TOP,
    "tau_bench/envs/kiosk/__init__.py": TOP,
    "tau_bench/types.py": """
        from typing import Any
        from pydantic import BaseModel

        class Action(BaseModel):
            name: str
            kwargs: dict[str, Any]

        class Task(BaseModel):
            user_id: str
            instruction: str
            actions: list[Action]
            outputs: list[str]
    """,
    "tau_bench/envs/kiosk/data/__init__.py": """
        def load_data():
            goods = {name: {"name": name, "price": 2, "stock": 3, "sold": []} for name in ("apple", "pear", "plum")}
            return {"goods": goods, "till": {"cash": 10}}
    """,
    "tau_bench/envs/kiosk/wiki.py": 'WIKI = "You run a kiosk."\n',
    "tau_bench/envs/kiosk/rules.py": 'RULES = ["Ask first.", "Then sell."]\n',
    "tau_bench/envs/kiosk/tools.py": """
        def about(name, **properties):
            parameters = {"type": "object", "properties": {key: {"type": value} for key, value in properties.items()}}
            function = {"name": name, "description": f"To {name}.", "parameters": parameters}
            return {"type": "function", "function": function}

        class Sell:
            @staticmethod
            def invoke(data, good, count):
                row = data["goods"][good]
                row["stock"] -= count
                row["sold"].append(count)
                if count > 9:
                    raise ValueError("too many")
                data["till"]["cash"] += count * row["price"]
                return "sold"

            @staticmethod
            def get_info():
                return about("sell", good="string", count="number")

        class Cheapest:
            @staticmethod
            def invoke(data):
                return min(data["goods"].values(), key=lambda row: row["price"])["name"]

            @staticmethod
            def get_info():
                return about("cheapest")

        class Refuse:
            @staticmethod
            def invoke(data):
                return "Error: closed"

            @staticmethod
            def get_info():
                return about("refuse")

        class Transfer:
            @staticmethod
            def invoke(data, summary):
                return "Transfer successful"

            @staticmethod
            def get_info():
                return about("transfer_to_human_agents", summary="string")

        class Basket:
            @staticmethod
            def invoke(data, goods):
                data["till"].setdefault("baskets", []).append(goods)
                goods.append("bag")
                return ", ".join(goods)

            @staticmethod
            def get_info():
                return about("basket", goods="array")

        class Calculate:
            @staticmethod
            def invoke(data, expression):
                return str(eval(expression, {"__builtins__": None}, {}))

            @staticmethod
            def get_info():
                return about("calculate", expression="string")

        ALL_TOOLS = [Sell, Cheapest, Refuse, Transfer, Basket, Calculate]
    """,
    "tau_bench/envs/kiosk/tasks_test.py": """
        from tau_bench.types import Action, Task

        def sell(good, count=1):
            return Action(name="sell", kwargs={"good": good, "count": count})

        TRANSFER = Action(name="transfer_to_human_agents", kwargs={"summary": "help"})
        TASKS_TEST = [
            Task(user_id="u", instruction="Buy an apple.", actions=[sell("apple")], outputs=[]),
            Task(user_id="u", instruction="Ask what is cheap.", actions=[], outputs=["1,000", "Apple"]),
            Task(user_id="u", instruction="Ask for a person.", actions=[TRANSFER], outputs=[]),
            Task(user_id="u", instruction="Buy two.", actions=[sell("pear"), sell("stone")], outputs=["2"]),
        ]
    """,
    "tau_bench/envs/kiosk/tasks_train.py": """
        from tau_bench.types import Action, Task

        PLUM = Action(name="sell", kwargs={"good": "plum", "count": 1})
        TASKS_TRAIN = [
            Task(user_id="u", instruction="Buy a plum.", actions=[PLUM], outputs=[]),
            Task(user_id="u", instruction="Say hello.", actions=[], outputs=[]),
        ]
    """,
}

TAU2 = {
    "src/tau2/__init__.py": TOP,
    "src/tau2/domains/__init__.py": "",
    "src/tau2/domains/lamp/__init__.py": "",
    "src/tau2/data_model/__init__.py": "",
    "src/tau2/data_model/message.py": """
        from typing import Any
        from pydantic import BaseModel

        class ToolCall(BaseModel):
            id: str = ""
            name: str
            arguments: dict[str, Any] = {}
            requestor: str = "assistant"

        class Said(BaseModel):
            id: str = ""
            role: str
            content: str | None = None
            tool_calls: list[ToolCall] | None = None
            error: bool = False
    """,
    "src/tau2/data_model/tasks.py": """
        from enum import Enum
        from typing import Any
        from pydantic import BaseModel
        from tau2.data_model.message import Said

        class Kind(str, Enum):
            DB = "DB"
            ENV_ASSERTION = "ENV_ASSERTION"
            NL_ASSERTION = "NL_ASSERTION"
            ACTION = "ACTION"
            COMMUNICATE = "COMMUNICATE"

        class Action(BaseModel):
            requestor: str = "assistant"
            name: str
            arguments: dict[str, Any] = {}

            def compare_with_tool_call(self, call):
                return (self.name, self.arguments) == (call.name, call.arguments)

            def get_func_format(self):
                return f"{self.name}({self.arguments})"

        class Criteria(BaseModel):
            actions: list[Action] | None = None
            env_assertions: list[Action] | None = None
            communicate_info: list[str] | None = None
            nl_assertions: list[str] | None = None
            reward_basis: list[Kind] = [Kind.DB, Kind.COMMUNICATE]

        class Start(BaseModel):
            initialization_data: Any = None
            initialization_actions: list[Action] | None = None
            message_history: list[Said] | None = None

        class Task(BaseModel):
            id: str
            user_scenario: str = "You sit in the dark."
            initial_state: Start | None = None
            evaluation_criteria: Criteria | None = None
            user_tools: list[str] | None = None
    """,
    "src/tau2/domains/lamp/environment.py": """
        import json
        from pathlib import Path
        from pydantic import BaseModel
        from tau2.data_model.message import Said
        from tau2.data_model.tasks import Task

        FOLDER = Path(__file__).parents[4] / "data"

        class Lamp(BaseModel):
            name: str
            powered: bool = False

        class House(BaseModel):
            lamps: dict[str, Lamp]
            notes: list[str] = []

        class Room(BaseModel):
            light: bool = False
            switch: bool = False

        class Tool:
            def __init__(self, name):
                self.name = name
                parameters = {"type": "object", "properties": {}}
                function = {"name": name, "description": f"To {name}.", "parameters": parameters}
                self.openai_schema = {"function": function}

        class Kit:
            def __init__(self, db):
                self.db = db

            def get_tools(self):
                return {name: Tool(name) for name in self.names}

        class HouseKit(Kit):
            names = ("power", "look", "calculate")

            def power(self, lamp):
                self.db.notes.append(f"power {lamp}")
                self.db.lamps[lamp].powered = True
                return f"{lamp} has power"

            def calculate(self, expression):
                return str(eval(expression, {"__builtins__": None}, {}))

            def look(self):
                return json.dumps([lamp.name for lamp in self.db.lamps.values()])

        class RoomKit(Kit):
            names = ("press",)

            def press(self):
                self.db.switch = not self.db.switch
                return f"switch {'on' if self.db.switch else 'off'}"

            def assert_light(self):
                return self.db.light

        class Environment:
            def __init__(self, house, room):
                self.policy = "Bring light."
                self.tools, self.user_tools = HouseKit(house), RoomKit(room)

            def get_tools(self):
                return list(self.tools.get_tools().values())

            def get_user_tools(self):
                return list(self.user_tools.get_tools().values())

            def sync_tools(self):
                self.user_tools.db.light = self.user_tools.db.switch and self.tools.db.lamps["desk"].powered

            def _run(self, call):
                kit = self.user_tools if call.requestor == "user" else self.tools
                return getattr(kit, call.name)(**call.arguments)

            def get_response(self, call):
                try:
                    content, error = self._run(call), False
                    self.sync_tools()
                except Exception as e:
                    content, error = f"Error: {e}", True
                return Said(id=call.id, role="tool", content=content, error=error)

            def run_env_assertion(self, assertion, raise_assertion_error=True):
                self.sync_tools()
                return self._run(assertion)

            def set_state(self, initialization_data, initialization_actions, message_history):
                for note in initialization_data or ():
                    self.tools.db = House.model_validate({**self.tools.db.model_dump(), "notes": [note]})
                for action in initialization_actions or ():
                    self._run(action)
                for message in message_history:
                    for call in message.tool_calls or ():
                        self._run(call)
                self.sync_tools()

        def get_environment(db=None, user_db=None):
            house = House(lamps={name: Lamp(name=name) for name in ("desk", "floor")})
            return Environment(db or house, user_db or Room())

        def get_tasks(task_split_name="base"):
            return [Task.model_validate(task) for task in json.loads((FOLDER / "tasks.json").read_text())]

        def get_tasks_split():
            return json.loads((FOLDER / "split_tasks.json").read_text())
    """,
    "data/split_tasks.json": '{"train": ["free"], "test": ["light", "tell", "judged", "later", "noted"]}',
    "data/tasks.json": """
        [
         {"id": "free", "evaluation_criteria": {"actions": [{"name": "look"}]}},
         {"id": "light", "evaluation_criteria": {
            "actions": [{"name": "power", "arguments": {"lamp": "desk"}}, {"requestor": "user", "name": "press"}],
            "env_assertions": [{"requestor": "user", "name": "assert_light"}],
            "reward_basis": ["ENV_ASSERTION", "ACTION"]}},
         {"id": "tell", "evaluation_criteria": {"actions": [], "communicate_info": ["1000 lumen"]}},
         {"id": "judged", "evaluation_criteria": {
            "nl_assertions": ["The agent is kind."], "reward_basis": ["NL_ASSERTION"]}},
         {"id": "later",
          "initial_state": {
            "initialization_actions": [{"name": "power", "arguments": {"lamp": "floor"}}],
            "message_history": [
              {"role": "user", "content": "It is dark."},
              {"role": "assistant", "tool_calls": [{"name": "power", "arguments": {"lamp": "floor"}}]},
              {"role": "tool", "content": "floor has power"},
              {"role": "assistant", "content": "I powered the floor lamp."}]},
          "evaluation_criteria": {"actions": [{"name": "power", "arguments": {"lamp": "desk"}}],
            "communicate_info": ["floor lamp"]}},
         {"id": "noted", "initial_state": {"initialization_data": ["be quick"]},
          "evaluation_criteria": {"actions": [{"name": "power", "arguments": {"lamp": "desk"}}]}}
        ]
    """,
}
