// OpenAI's own SDK.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { eventually, metric, startServer, weatherParameters } from './server.js';

let server;
let client;
before(async () => {
  server = await startServer();
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'any', maxRetries: 0 });
});
after(() => server.stop());

const ask = (text) => ({ model: 'any', temperature: 0, messages: [{ role: 'user', content: text }] });
const plain = { chat_template_kwargs: { enable_thinking: false } };

test('answers', async () => {
  const completion = await client.chat.completions.create(ask('What is the capital of Thailand?'));
  assert.match(completion.choices[0].message.content, /Bangkok/);
  assert.equal(completion.choices[0].finish_reason, 'stop');
  assert.ok(completion.choices[0].message.reasoning_content.length > 0);
  assert.equal(completion.usage.total_tokens, completion.usage.prompt_tokens + completion.usage.completion_tokens);
});

test('streams what it answers whole', async () => {
  const request = ask('Calculate 18 - 14.');
  const whole = (await client.chat.completions.create(request)).choices[0].message;
  const stream = await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } });
  let content = '';
  let reasoning = '';
  let usage;
  for await (const chunk of stream) {
    content += chunk.choices[0]?.delta.content ?? '';
    reasoning += chunk.choices[0]?.delta.reasoning_content ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.equal(content, whole.content);
  assert.equal(reasoning, whole.reasoning_content);
  assert.ok(usage.completion_tokens > 0);
});

test('gathers a stream with its helper', async () => {
  const stream = client.chat.completions.stream({ ...ask('Calculate 4 / 2.'), ...plain });
  const completion = await stream.finalChatCompletion();
  assert.equal(completion.choices[0].message.content, '4 / 2 = 2');
});

const weatherTool = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Get the weather of a city',
    parameters: weatherParameters,
    parse: JSON.parse,
    function: ({ city }) => `It is sunny in ${city}.`,
  },
};

for (const stream of [false, true]) {
  test(`runs tools with its helper${stream ? ', streaming' : ''}`, async () => {
    const cities = [];
    const tool = structuredClone({ ...weatherTool, function: { ...weatherTool.function, parse: 0, function: 0 } });
    tool.function.parse = JSON.parse;
    tool.function.function = ({ city }) => {
      cities.push(city);
      return `It is sunny in ${city}.`;
    };
    const runner = client.chat.completions.runTools(
      { ...ask('What is the weather in Madrid?'), ...plain, tools: [tool], stream },
      { maxChatCompletions: 3 },
    );
    const last = await runner.finalContent();
    assert.deepEqual(cities, ['Madrid']);
    assert.ok(last.length > 0);
  });
}

test('reads a required call', async () => {
  const { function: declaration } = weatherTool;
  const completion = await client.chat.completions.create({
    ...ask('Tell me a story.'),
    tools: [{ type: 'function', function: { name: declaration.name, parameters: declaration.parameters } }],
    tool_choice: { type: 'function', function: { name: 'get_weather' } },
    max_completion_tokens: 300,
  });
  const [call] = completion.choices[0].message.tool_calls;
  assert.equal(call.function.name, 'get_weather');
  assert.equal(typeof JSON.parse(call.function.arguments), 'object');
  assert.equal(completion.choices[0].finish_reason, 'tool_calls');
});

test('aborts, and the server stops with it', async () => {
  const stream = await client.chat.completions.create({ ...ask('Tell me a long story.'), ...plain, logit_bias: { 2422: -100, 2420: -100 }, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) break; // which aborts
  }
  assert.ok(await eventually(async () => (await metric(server.url, 'calla_slots_busy')) === 0));
  const aborting = new AbortController();
  const whole = client.chat.completions.create(
    { ...ask('Tell me a long story.'), ...plain, logit_bias: { 2422: -100, 2420: -100 } },
    { signal: aborting.signal },
  );
  setTimeout(() => aborting.abort(), 100);
  await assert.rejects(whole, OpenAI.APIUserAbortError);
  assert.ok(await eventually(async () => (await metric(server.url, 'calla_slots_busy')) === 0));
});

test('refuses a structured answer by name, for now', async () => {
  const request = client.chat.completions.parse({
    ...ask('Calculate 4 / 2.'),
    response_format: { type: 'json_schema', json_schema: { name: 'n', schema: { type: 'object' } } },
  });
  await assert.rejects(request, (fault) => fault instanceof OpenAI.BadRequestError && fault.param === 'response_format');
});

test('understands faults', async () => {
  await assert.rejects(client.chat.completions.create({ ...ask('x'), temperature: 7 }), (fault) => {
    assert.ok(fault instanceof OpenAI.BadRequestError);
    assert.equal(fault.type, 'invalid_request_error');
    assert.equal(fault.param, 'temperature');
    return true;
  });
  await assert.rejects(client.chat.completions.create(ask('word '.repeat(20000))), (fault) => fault.code === 'context_length_exceeded');
  await assert.rejects(client.models.retrieve('nothing'), OpenAI.NotFoundError);
});

test('several choices, log-probabilities, a seed', async () => {
  const request = { ...ask('Tell me a story.'), ...plain, temperature: 1, seed: 7, n: 2, logprobs: true, top_logprobs: 2, max_tokens: 8 };
  const first = await client.chat.completions.create(request);
  const second = await client.chat.completions.create(request);
  assert.equal(first.choices.length, 2);
  assert.deepEqual(first.choices.map((c) => c.message.content), second.choices.map((c) => c.message.content));
  assert.equal(first.choices[0].logprobs.content.length, 8);
  assert.equal(first.choices[0].logprobs.content[0].top_logprobs.length, 2);
});

test('raw completions', async () => {
  const prompt = '<|im_start|>user\nCalculate 4 / 2.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n';
  const completion = await client.completions.create({ model: 'any', prompt, temperature: 0, max_tokens: 20 });
  assert.equal(completion.choices[0].text, '4 / 2 = 2');
  let text = '';
  for await (const chunk of await client.completions.create({ model: 'any', prompt, temperature: 0, max_tokens: 20, stream: true })) {
    text += chunk.choices[0].text;
  }
  assert.equal(text, '4 / 2 = 2');
});

test('models', async () => {
  const models = await client.models.list();
  assert.equal(models.data.length, 1);
  assert.equal(models.data[0].context_length, models.data[0].max_model_len);
});
