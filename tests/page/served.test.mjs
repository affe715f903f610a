// The page as the program itself serves it, with the demonstration model behind it.
import assert from 'node:assert/strict';
import {spawn} from 'node:child_process';
import {createServer} from 'node:net';
import {after, before, test} from 'node:test';
import {launch, lastAnswer, ready, say} from './browser.mjs';

let browser;
let program;
let url;

const freePort = () => new Promise(resolve => {
  const probe = createServer().listen(0, '127.0.0.1', () => {
    const {port} = probe.address();
    probe.close(() => resolve(port));
  });
});

before(async () => {
  const port = await freePort();
  url = `http://127.0.0.1:${port}/`;
  program = spawn(process.env.CALLA_PROGRAM, ['serve', '--port', String(port)], {stdio: 'ignore'});
  browser = await launch();
});
after(async () => {
  await browser?.close();
  program?.kill();
});

test('answers, and still has the conversation after a reload', {skip: !process.env.CALLA_PROGRAM && 'CALLA_PROGRAM is not set'}, async () => {
  const page = await browser.newPage();
  const complaints = [];
  page.on('pageerror', error => complaints.push(String(error)));
  for (let attempt = 0; ; ++attempt) {
    try {
      await page.goto(url);
      break;
    } catch (error) {
      if (attempt === 50) throw error;
      await page.waitForTimeout(200);
    }
  }
  await ready(page);
  await say(page, 'What is the capital of Thailand?');
  assert.match(await lastAnswer(page), /Bangkok/);
  await page.reload();
  await ready(page);
  assert.match(await lastAnswer(page), /Bangkok/);
  assert.deepEqual(complaints, []);
});
