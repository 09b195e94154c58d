"""Replies with two calls, FIRST and SECOND, in the syntaxes of many model families."""

FIRST = ("weather", {"city": "Zürich <b>", "days": 3, "more": {"deep": [1, {"x": None}]}})
SECOND = ("stop", {})
NS = "]<]minimax[>["
DSML = "｜DSML｜"

FAMILIES = {
    "DeepSeek V3.2": (
        f'<{DSML}function_calls>\n<{DSML}invoke name="weather">\n'
        f'<{DSML}parameter name="city" string="true">Zürich <b></{DSML}parameter>\n'
        f'<{DSML}parameter name="days" string="false">3</{DSML}parameter>\n'
        f'<{DSML}parameter name="more" string="false">{{"deep": [1, {{"x": null}}]}}</{DSML}parameter>\n'
        f'</{DSML}invoke>\n<{DSML}invoke name="stop">\n</{DSML}invoke>\n</{DSML}function_calls>'
    ),
    "DeepSeek V4 with JSON": (
        f'<{DSML}tool_calls>\n<{DSML}invoke name="weather">\n'
        '{"city": "Zürich <b>", "days": 3, "more": {"deep": [1, {"x": null}]}}\n'
        f'</{DSML}invoke>\n<{DSML}invoke name="stop">{{}}</{DSML}invoke>\n</{DSML}tool_calls>'
    ),
    "MiniMax M2": (
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Zürich <b></parameter>\n'
        '<parameter name="days">3</parameter>\n<parameter name="more">{"deep": [1, {"x": null}]}</parameter>\n'
        '</invoke>\n<invoke name="stop">\n</invoke>\n</minimax:tool_call>'
    ),
    "MiniMax M3": (
        f'{NS}<tool_call>\n{NS}<invoke name="weather">\n{NS}<city>Zürich <b>{NS}</city>\n{NS}<days>3{NS}</days>\n'
        f"{NS}<more>{NS}<deep>{NS}<item>1{NS}</item>{NS}<item>{NS}<x>null{NS}</x>{NS}</item>\n{NS}</deep>\n{NS}</more>"
        f'\n{NS}</invoke>\n{NS}<invoke name="stop">{NS}</invoke>\n{NS}</tool_call>'
    ),
    "Step 3": (
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="weather">'
        '<steptml:parameter name="city">Zürich <b></steptml:parameter><steptml:parameter name="days">3'
        '</steptml:parameter><steptml:parameter name="more">{"deep": [1, {"x": null}]}</steptml:parameter>'
        '</steptml:invoke><｜tool_call_end｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="stop">'
        "</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>"
    ),
    "MiniCPM5": (
        '<function name="weather"><param name="city"><![CDATA[Zürich <b>]]></param><param name="days">3</param>'
        '<param name="more">{"deep": [1, {"x": null}]}</param></function>\n<function name="stop"></function>'
    ),
    "Gemma 4": (
        '<|tool_call>call:weather{city:<|"|>Zürich <b><|"|>,days:3,more:{deep:[1,{x:null}]}}<tool_call|>'
        "<|tool_call>call:stop{}<tool_call|>"
    ),
    "FunctionGemma": (
        "<start_function_call>call:weather{city:<escape>Zürich <b><escape>,days:<escape>3<escape>,"
        "more:{deep:[1,{x:null}]}}<end_function_call><start_function_call>call:stop{}<end_function_call>"
    ),
    "OLMo 3": (
        "<function_calls>\nweather(city='Zürich <b>', days=3, more={'deep': [1, {'x': null}]})\nstop()\n"
        "</function_calls>"
    ),
    "Apertus": (
        '<|tools_prefix|>[{"weather": {"city": "Zürich <b>", "days": 3, "more": {"deep": [1, {"x": null}]}}}, '
        '{"stop": {}}]<|tools_suffix|>'
    ),
    "Hunyuan V3": (
        "<tool_calls>\n<tool_call>weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Zürich <b></arg_value>\n"
        '<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>more</arg_key>\n<arg_value>{"deep": [1, '
        '{"x": null}]}</arg_value>\n</tool_call>\n<tool_call>stop<tool_sep></tool_call>\n</tool_calls>'
    ),
    "Hunyuan V3 with suffix": (
        "<tool_calls:opensource><tool_call:opensource>weather<tool_sep:opensource>"
        "<arg_key:opensource>city</arg_key:opensource><arg_value:opensource>Zürich <b></arg_value:opensource>"
        "<arg_key:opensource>days</arg_key:opensource><arg_value:opensource>3</arg_value:opensource>"
        '<arg_key:opensource>more</arg_key:opensource><arg_value:opensource>{"deep": [1, {"x": null}]}'
        "</arg_value:opensource></tool_call:opensource><tool_call:opensource>stop<tool_sep:opensource>"
        "</tool_call:opensource></tool_calls:opensource>"
    ),
    "Hunyuan A13B": (
        '<tool_calls>[{"name": "weather", "arguments": {"city": "Zürich <b>", "days": 3, "more": {"deep": [1, '
        '{"x": null}]}}}, {"name": "stop", "arguments": {}}]</tool_calls>'
    ),
    "Kimi K2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Zürich <b>", "days": 3, "more": {"deep": [1, {"x": null}]}}<|tool_call_end|>'
        "<|tool_call_begin|>functions.stop:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "Phi 4 mini": (
        'functools[{"name": "weather", "arguments": {"city": "Zürich <b>", "days": 3, "more": {"deep": [1, '
        '{"x": null}]}}}, {"name": "stop", "arguments": {}}]'
    ),
    "Command A": (
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Zürich <b>", '
        '"days": 3, "more": {"deep": [1, {"x": null}]}}}, {"tool_call_id": "1", "tool_name": "stop", "parameters": {}}]'
        "<|END_ACTION|>"
    ),
    "Seed OSS": (
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Zürich <b></parameter>\n<parameter=days>3</parameter>\n"
        '<parameter=more>{"deep": [1, {"x": null}]}</parameter>\n</function>\n</seed:tool_call>\n'
        "<seed:tool_call>\n<function=stop>\n</function>\n</seed:tool_call>"
    ),
}
