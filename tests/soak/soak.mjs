// The long load test: many clients of every kind against the demonstration model, each of which checks its own answer.
//
//   CALLA_PROGRAM=build/release/calla node tests/soak/soak.mjs [--seconds 60] [--clients 64]
//
// Fails when an answer is lost, wrong or someone else's, when memory grows by more than 2 % after the first quarter, or when
// the 99th percentile of /health exceeds 50 ms.
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { performance } from 'node:perf_hooks';
import { parseArgs } from 'node:util';

const { values } = parseArgs({ options: { seconds: { type: 'string', default: '60' }, clients: { type: 'string', default: '64' } } });
const seconds = Number(values.seconds);
const clients = Number(values.clients);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const server = spawn(process.env.CALLA_PROGRAM, ['serve', '--port', '0', '--slots', '8', '--queue', String(clients)], {
  stdio: ['ignore', 'ignore', 'pipe'],
});
let log = '';
server.stderr.on('data', (bytes) => { log = (log + bytes).slice(-4000); });
server.on('exit', (code) => { if (!ending) { console.error(`calla ended with ${code}\n${log}`); process.exit(1); } });
let ending = false;
while (!/listening on http:\S+:\d+/.test(log)) await sleep(20);
const port = Number(log.match(/listening on http:\S+:(\d+)/)[1]);

/** One request; resolves to { status, body }, and to null where `abortAfter` bytes of the body were enough. */
function send(path, body, { abortAfter = Infinity, slow = false, agent } = {}) {
  return new Promise((resolve, reject) => {
    const request = http.request({ host: '127.0.0.1', port, path, agent, method: body ? 'POST' : 'GET',
      headers: body ? { 'Content-Type': 'application/json' } : {} }, async (response) => {
      const pieces = [];
      let length = 0;
      try {
        for await (const piece of response) {
          pieces.push(piece);
          length += piece.length;
          if (length >= abortAfter) { request.destroy(); resolve(null); return; }
          if (slow) await sleep(30);
        }
        resolve({ status: response.statusCode, body: Buffer.concat(pieces).toString() });
      } catch (fault) { reject(fault); }
    });
    request.on('error', (fault) => (request.destroyed && abortAfter < Infinity ? resolve(null) : reject(fault)));
    request.end(body && JSON.stringify(body));
  });
}

/** Text and reasoning of an answer, streamed or whole. */
function textOf(body, stream) {
  if (!stream) {
    const { message } = JSON.parse(body).choices[0];
    return `${message.reasoning_content ?? ''}|${message.content ?? ''}`;
  }
  let reasoning = '';
  let content = '';
  const events = body.split('\n').filter((line) => line.startsWith('data: ')).map((line) => line.slice(6));
  if (events.at(-1) !== '[DONE]') throw new Error(`the stream ends with ${events.at(-1)}`);
  for (const event of events.slice(0, -1)) {
    const chunk = JSON.parse(event);
    if (chunk.error) throw new Error(chunk.error.message);
    reasoning += chunk.choices[0]?.delta.reasoning_content ?? '';
    content += chunk.choices[0]?.delta.content ?? '';
  }
  return `${reasoning}|${content}`;
}

const question = (i) => ({
  temperature: 0,
  max_tokens: 60,
  messages: [{ role: 'user', content: i % 3 === 0 ? `Tell me a story about number ${i}.` : `Calculate ${i} + ${(7 * i) % 50}.` }],
  chat_template_kwargs: { enable_thinking: i % 2 === 0 },
});

while ((await send('/health')).status !== 200) await sleep(50);
// Alone, one after the other: what is right.
const expected = [];
for (let i = 0; i < 48; ++i) expected.push(textOf((await send('/v1/chat/completions', question(i))).body, false));

const memory = () => Number(readFileSync(`/proc/${server.pid}/status`, 'utf8').match(/VmRSS:\s+(\d+)/)[1]) / 1024;
const counts = { whole: 0, streamed: 0, slow: 0, aborted: 0, refused: 0 };
const faults = [];
const health = [];
const memories = [];
const begin = performance.now();
const elapsed = () => (performance.now() - begin) / 1000;

async function client(number) {
  const agent = new http.Agent({ keepAlive: number % 2 === 0, maxSockets: 1 });
  for (let turn = 0; elapsed() < seconds; ++turn) {
    const i = (number * 31 + turn * 17) % expected.length;
    const kind = ['whole', 'streamed', 'streamed', 'slow', 'aborted', 'refused'][(number + turn) % 6];
    const stream = kind !== 'whole' && kind !== 'refused' && !(kind === 'aborted' && turn % 2 === 0);
    const body = { ...question(i), stream, ...(kind === 'refused' ? { temperature: 9 } : {}) };
    try {
      if (kind === 'aborted' && !stream) {
        const gone = new AbortController();
        setTimeout(() => gone.abort(), 20 + (turn % 5) * 40);
        await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, { method: 'POST', signal: gone.signal,
          headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) }).catch(() => {});
      } else {
        const answer = await send('/v1/chat/completions', body,
          { agent, slow: kind === 'slow', abortAfter: kind === 'aborted' ? 200 + 300 * (turn % 4) : Infinity });
        if (kind === 'refused') {
          if (answer.status !== 400) throw new Error(`${answer.status} in place of 400`);
        } else if (answer !== null) {
          if (answer.status !== 200) throw new Error(`status ${answer.status}: ${answer.body.slice(0, 200)}`);
          const text = textOf(answer.body, stream);
          if (text !== expected[i]) throw new Error(`to ${i}, ${kind}: ${JSON.stringify(text)} in place of ${JSON.stringify(expected[i])}`);
        }
      }
      ++counts[kind];
    } catch (fault) {
      faults.push(`client ${number}, turn ${turn}, ${kind}: ${fault.message}`);
    }
  }
  agent.destroy();
}

async function watch() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  while (elapsed() < seconds) {
    const asked = performance.now();
    await send('/health', null, { agent });
    health.push(performance.now() - asked);
    memories.push([elapsed(), memory()]);
    await sleep(50);
  }
  agent.destroy();
}

await Promise.all([watch(), ...Array.from({ length: clients }, (_, number) => client(number))]);
await sleep(500);

health.sort((a, b) => a - b);
const percentile = (share) => health[Math.min(health.length - 1, Math.floor(health.length * share))];
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
const between = (from, to) => median(memories.filter(([at]) => at >= from * seconds && at < to * seconds).map(([, mb]) => mb));
const early = between(0.25, 0.4);
const late = between(0.9, 1.01);
const busy = JSON.parse((await send('/health')).body);

ending = true;
const signalled = performance.now();
server.kill('SIGTERM');
await new Promise((resolve) => server.once('exit', resolve));
const ended = performance.now() - signalled;

console.log('requests', counts);
console.log(`health: median ${percentile(0.5).toFixed(1)} ms, p99 ${percentile(0.99).toFixed(1)} ms, worst ${health.at(-1).toFixed(1)} ms, of ${health.length}`);
console.log(`memory: ${early.toFixed(1)} MiB after a quarter, ${late.toFixed(1)} MiB at the end`);
console.log(`ended in ${ended.toFixed(0)} ms`);
const problems = faults.slice(0, 10);
if (faults.length > 10) problems.push(`and ${faults.length - 10} more faults`);
if (late > early * 1.02) problems.push('memory grows by more than 2 %');
if (percentile(0.99) > 50) problems.push('the 99th percentile of /health exceeds 50 ms');
if (busy.slots_busy !== 0 || busy.queue !== 0) problems.push(`afterwards ${busy.slots_busy} slots are busy and ${busy.queue} requests wait`);
if (ended > 1000) problems.push('it took more than a second to end');
for (const problem of problems) console.error(problem);
process.exit(problems.length === 0 ? 0 : 1);
