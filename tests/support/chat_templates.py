"""Chat templates that tests give to model folders."""

HEADERS = ("<|begin|>", "<|head|>", "<|/head|>", "<|eot|>")
"""Tokens of `LLAMA`, which the tokenizer must have."""
LLAMA = """{{- bos_token }}
{%- macro turn(role, text) %}{{ '<|head|>' + role + '<|/head|>\\n\\n' + text + '<|eot|>' }}{% endmacro %}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{{- turn('system', system) }}
{%- for m in messages %}
  {%- if m.role == 'tool' %}{{ turn('ipython', {'output': m.content} | tojson) }}
  {%- elif m.tool_calls %}
    {%- if m.tool_calls | length > 1 %}{{ raise_exception('one call at once') }}{% endif %}
    {%- set call = m.tool_calls[0].function %}
    {{- turn('assistant', '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}') }}
  {%- elif loop.first and tools %}
    {{- turn('user', 'Functions:\\n\\n' + (tools | map('tojson') | join('\\n\\n')) + '\\n\\n' + m.content | trim) }}
  {%- else %}{{ turn(m.role, m.content | trim) }}{% endif %}
{%- endfor %}
{{- '<|head|>assistant<|/head|>\\n\\n' if add_generation_prompt }}"""
"""A template like Llama 3.1's: one call per reply, and the tools in the first user message."""
CODER = """{%- for m in messages %}
  {%- if loop.first and tools %}
    {{- '<|im_start|>system\\n' + (m.content if m.role == 'system' else '') }}
    {{- '\\n<tools>' + (tools | tojson) + '</tools>' }}
    {{- '<|im_end|>\\n' }}
  {%- endif %}
  {%- if m.role == 'system' and tools %}
  {%- elif m.role == 'tool' %}
    {%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user\\n' }}{% endif %}
    {{- '<tool_response>\\n' + m.content + '\\n</tool_response>\\n' }}
    {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
  {%- else %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content }}
    {%- for call in m.tool_calls %}
      {{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
      {%- for key, value in call.function.arguments | items %}
        {{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
      {%- endfor %}
      {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
  {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' if add_generation_prompt }}"""
"""A template like Qwen3-Coder's: parameters of calls in tags."""
OLMO = """{%- macro turn(role, text) %}{{ '<|head|>' + role + '\\n' + text + '<|eot|>\\n' }}{% endmacro %}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {{- '<|head|>assistant\\n' + m.content }}
    {%- if m.tool_calls %}{{ '<function_calls>' }}
      {%- for call in m.tool_calls %}{{ '' if loop.first else '\\n' }}{{ call.function.name + '(' }}
        {%- for key, x in call.function.arguments | items %}{{ ', ' if not loop.first }}{{ key ~ '=' ~ (x | tojson) }}
        {%- endfor %}{{ ')' }}
      {%- endfor %}{{ '</function_calls>' }}
    {%- endif %}
    {{- '<|begin|>' if loop.last else '<|eot|>\\n' }}
  {%- elif m.role == 'tool' %}{{ turn('environment', m.content) }}
  {%- else %}{{ turn(m.role, m.content + ('<functions>' + (tools | tojson) + '</functions>' if loop.first else '')) }}
  {%- endif %}
{%- endfor %}
{{- '<|head|>assistant\\n' if add_generation_prompt }}"""
"""A template like OLMo 3's: calls in tokens, JSON as Python values, and another stop token after the last reply."""
OLMO_TOKENS = ("<function_calls>", "</function_calls>")
"""Tokens of `OLMO` besides `HEADERS`."""
GEMMA = """{%- set ns = namespace(open=false) %}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {%- if not ns.open %}{{ '<|head|>assistant\\n' }}{% endif %}
    {%- set s = namespace(calls=m.tool_calls or [], results=false, stop=false) %}
    {%- for call in s.calls %}
      {{- '<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
      {{- '</tool_call>' }}
    {%- endfor %}
    {%- for r in messages[loop.index:] if s.calls %}
      {%- if r.role != 'tool' %}{% set s.stop = true %}{% endif %}
      {%- if not s.stop %}
        {%- set named = namespace(name='unknown', results=true) %}{% set s.results = true %}
        {%- for call in s.calls if call.id == r.tool_call_id %}{% set named.name = call.function.name %}{% endfor %}
        {{- '<|begin|>' + named.name + ': ' + r.content + '<|/head|>' }}
      {%- endif %}
    {%- endfor %}
    {{- m.content | trim }}
    {%- set ns.open = s.results and not m.content | trim %}
    {%- if s.calls and not s.results %}{{ '<|begin|>' }}{% elif not ns.open %}{{ '<|eot|>\\n' }}{% endif %}
  {%- elif m.role != 'tool' %}
    {%- set ns.open = false %}
    {{- '<|head|>' + m.role + '\\n' + (tools | tojson if tools and loop.first else '') }}
    {{- m.content | trim + '<|eot|>\\n' }}
  {%- endif %}
{%- endfor %}
{{- '<|head|>assistant\\n' if add_generation_prompt and not ns.open }}"""
"""A template like Gemma 4's: results have the name of their call and stand in the reply's turn, before its text."""
THINKING = """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' }}
{{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is false else '' }}"""
"""ChatML without tools, for a model whose thinking can be switched off."""
