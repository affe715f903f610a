// The server under test: CALLA_URL names one that runs; else CALLA_PROGRAM is started on a free port.
import { spawn } from 'node:child_process';

/** Starts the server; resolves to { url, stop() }. */
export async function startServer() {
  if (process.env.CALLA_URL) return { url: process.env.CALLA_URL, stop: async () => {} };
  const program = process.env.CALLA_PROGRAM;
  if (!program) throw new Error('set CALLA_PROGRAM to the built calla, or CALLA_URL to a running one');
  const child = spawn(program, ['serve', '--port', '0', '--slots', '2'], { stdio: ['ignore', 'ignore', 'pipe'] });
  let log = '';
  const url = await new Promise((resolve, reject) => {
    child.on('exit', (code) => reject(new Error(`calla ended with ${code}:\n${log}`)));
    child.stderr.on('data', (bytes) => {
      log += bytes;
      const found = log.match(/listening on (http:\S+)/);
      if (found) resolve(found[1]);
    });
  });
  for (;;) {
    if ((await fetch(`${url}/health`)).ok) break;
    await new Promise((wait) => setTimeout(wait, 50));
  }
  const stop = () =>
    new Promise((resolve) => {
      child.removeAllListeners('exit');
      child.on('exit', resolve);
      child.kill('SIGTERM');
    });
  return { url, stop };
}

/** A tool that the demonstration model knows how to call. */
export const weatherParameters = {
  type: 'object',
  properties: {
    city: { type: 'string' },
    unit: { type: 'string', enum: ['celsius', 'fahrenheit'] },
  },
  required: ['city'],
};

/** Reads a figure of /metrics. */
export async function metric(url, name) {
  const text = await (await fetch(`${url}/metrics`)).text();
  const line = text.split('\n').find((one) => one.startsWith(`${name} `));
  return Number(line.split(' ')[1]);
}

/** Waits until a condition holds, five seconds at most. */
export async function eventually(condition) {
  for (let i = 0; i < 100; ++i) {
    if (await condition()) return true;
    await new Promise((wait) => setTimeout(wait, 50));
  }
  return false;
}
