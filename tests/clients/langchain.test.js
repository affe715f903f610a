// LangChain's ChatOpenAI.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI } from '@langchain/openai';
import { startServer, weatherParameters } from './server.js';

let server;
let chat;
before(async () => {
  server = await startServer();
  chat = new ChatOpenAI({
    model: 'any',
    apiKey: 'any',
    temperature: 0,
    maxRetries: 0,
    configuration: { baseURL: `${server.url}/v1` },
    modelKwargs: { chat_template_kwargs: { enable_thinking: false } },
  });
});
after(() => server.stop());

test('answers and counts', async () => {
  const answer = await chat.invoke('Calculate 4 / 2.');
  assert.equal(answer.content, '4 / 2 = 2');
  assert.ok(answer.usage_metadata.output_tokens > 0);
});

test('streams', async () => {
  let text = '';
  let usage;
  for await (const chunk of await chat.stream('Calculate 4 / 2.')) {
    text += chunk.content;
    usage = chunk.usage_metadata ?? usage;
  }
  assert.equal(text, '4 / 2 = 2');
  assert.ok(usage.total_tokens > 0);
});

test('calls a tool and goes on with its result', async () => {
  const weather = tool(({ city }) => `It is sunny in ${city}.`, {
    name: 'get_weather',
    description: 'Get the weather of a city',
    schema: weatherParameters,
  });
  const bound = chat.bindTools([weather], { parallel_tool_calls: false });
  const messages = [new HumanMessage('What is the weather in Madrid?')];
  const answer = await bound.invoke(messages);
  assert.equal(answer.tool_calls.length, 1);
  assert.equal(answer.tool_calls[0].args.city, 'Madrid');
  const result = await weather.invoke(answer.tool_calls[0]);
  assert.ok(result instanceof ToolMessage);
  const last = await bound.invoke([...messages, answer, result]);
  assert.ok(last.content.length > 0);
});

test('is told the limit of tokens under its new name', async () => {
  const short = new ChatOpenAI({ ...chat.lc_kwargs, maxTokens: 2 });
  const answer = await short.invoke('Tell me a story.');
  assert.equal(answer.response_metadata.finish_reason, 'length');
});
