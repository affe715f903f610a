// Chromium for the tests. CHROMIUM names another one than the system's.
import {existsSync} from 'node:fs';
import {chromium} from 'playwright-core';
import {TestServer} from './server.mjs';

const PROGRAM = [process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome',
                 '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome'].find(path => path && existsSync(path));

export const launch = () => chromium.launch({executablePath: PROGRAM, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage']});

/** A server and a page of a fresh profile on it. Whatever the page complains of is collected in `complaints`. */
export async function visit(browser, {options = {}, before, server: fields = {}} = {}) {
  const server = Object.assign(await new TestServer().start(), fields);
  const context = await browser.newContext({viewport: {width: 1280, height: 860}, reducedMotion: 'reduce', ...options});
  const complaints = [];
  const open = async () => {
    const page = await context.newPage();
    page.on('pageerror', error => complaints.push(String(error)));
    page.on('console', message => {
      if (message.type() === 'error' && !/Failed to load resource/.test(message.text())) complaints.push(message.text());
    });
    if (before) await page.addInitScript(before);
    await page.goto(server.url);
    return page;
  };
  const page = await open();
  return {server, context, page, complaints, open, close: async () => { await context.close(); await server.stop(); }};
}

export const ready = page => page.waitForSelector('#state[data-state="ready"]');

/** Writes a message and sends it; waits for the end of the answer unless told not to. */
export async function say(page, text, {wait = true} = {}) {
  const turns = await page.locator('.turn').count();
  await page.fill('#input', text);
  await page.press('#input', 'Enter');
  await page.waitForFunction(n => document.querySelectorAll('.turn').length > n, turns);
  if (wait) await done(page);
}

export const done = page => page.waitForFunction(() => !document.querySelector('.turn[aria-busy="true"]') && document.querySelector('.turn.assistant'));
export const lastAnswer = page => page.locator('.turn.assistant').last().locator('> .md').innerText();
