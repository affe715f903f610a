// Vercel's AI SDK through its provider for compatible servers.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { startServer, weatherParameters } from './server.js';

let server;
let model;
before(async () => {
  server = await startServer();
  model = createOpenAICompatible({ name: 'calla', baseURL: `${server.url}/v1`, includeUsage: true })('any');
});
after(() => server.stop());

test('generates text with its reasoning', async () => {
  const result = await generateText({ model, temperature: 0, prompt: 'What is the capital of Thailand?' });
  assert.match(result.text, /Bangkok/);
  assert.ok(result.reasoningText.length > 0);
  assert.equal(result.finishReason, 'stop');
  assert.ok(result.usage.outputTokens > 0);
});

test('streams text with tools over two steps', async () => {
  const cities = [];
  const result = streamText({
    model,
    temperature: 0,
    prompt: 'What is the weather in Madrid?',
    stopWhen: stepCountIs(3),
    tools: {
      get_weather: tool({
        description: 'Get the weather of a city',
        inputSchema: jsonSchema(weatherParameters),
        execute: async ({ city }) => {
          cities.push(city);
          return `It is sunny in ${city}.`;
        },
      }),
    },
  });
  const kinds = new Set();
  for await (const part of result.fullStream) {
    if (part.type === 'error') throw part.error;
    kinds.add(part.type);
  }
  assert.deepEqual(cities, ['Madrid']);
  assert.ok((await result.steps).length >= 2);
  assert.ok((await result.text).length > 0);
  for (const kind of ['tool-input-start', 'tool-input-delta', 'tool-call', 'tool-result', 'text-delta']) assert.ok(kinds.has(kind), kind);
});

test('passes options of its own', async () => {
  const result = await generateText({
    model,
    temperature: 0,
    prompt: 'Calculate 4 / 2.',
    providerOptions: { calla: { chat_template_kwargs: { enable_thinking: false } } },
  });
  assert.equal(result.text, '4 / 2 = 2');
});

test('aborts', async () => {
  const aborting = new AbortController();
  const result = streamText({ model, prompt: 'Tell me a long story.', abortSignal: aborting.signal, onError: () => {} });
  for await (const part of result.fullStream) {
    if (part.type === 'reasoning-delta' || part.type === 'text-delta') aborting.abort();
  }
  assert.ok(aborting.signal.aborted);
});

test('reads a fault', async () => {
  await assert.rejects(generateText({ model, maxRetries: 0, prompt: 'word '.repeat(20000) }), /context length/);
});
