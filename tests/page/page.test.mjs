// The page around a conversation: the server's states, the list, keys, themes, small screens, storage, other tabs.
import assert from 'node:assert/strict';
import {readFile} from 'node:fs/promises';
import {after, afterEach, before, test} from 'node:test';
import {done, lastAnswer, launch, ready, say, visit} from './browser.mjs';

let browser, visitor, page, server;
before(async () => { browser = await launch(); });
after(() => browser.close());
const begin = async options => {
  visitor = await visit(browser, options);
  ({page, server} = visitor);
};
afterEach(async () => {
  await visitor.close();
  assert.deepEqual(visitor.complaints, []);
});

const button = (name, scope = page) => scope.getByRole('button', {name, exact: true});
const see = text => page.locator('main').getByText(text, {exact: typeof text === 'string'}).last().waitFor();
const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.className);
const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
const titles = () => page.locator('.entry .title').allInnerTexts();

test('an empty page invites, and an example begins a message', async () => {
  await begin();
  await ready(page);
  await see('What is on your mind?');
  assert.equal(await focused(), 'input');
  await button(/^Explain why the sky is blue/).click();
  assert.match(await page.inputValue('#input'), /^Explain why the sky is blue to a curious/);
  await page.keyboard.press('Enter');
  await done(page);
  assert.deepEqual(await titles(), ['Explain why the sky is blue to a curious ten-year-old, with…']);
});

test('while the model loads, its progress is shown and writing is possible', async () => {
  await begin({server: {health: {status: 503, body: {status: 'loading', progress: 0.42}}}});
  await see('Loading the model… 42 %');
  assert.equal(await page.locator('progress').getAttribute('value'), '0.42');
  await page.fill('#input', 'Hello');
  await page.keyboard.press('Enter');
  assert.equal(await page.inputValue('#input'), 'Hello');
  assert.equal(await page.locator('#send').isDisabled(), true);
  server.health = {status: 200, body: {status: 'ok'}};
  await ready(page);
  await page.keyboard.press('Enter');
  await done(page);
});

test('a server that goes away and comes back', async () => {
  await begin();
  await ready(page);
  const {port} = server;
  await server.stop();
  await say(page, 'Hello?');
  await page.locator('.error').getByText('The server does not answer.').waitFor();
  await see('Server not reachable');
  await server.start(port);
  await button('Try now').click();
  await ready(page);
  await button('Try again').click();
  await see('Hello.');
});

test('a key is asked for, refused, taken, and forgotten unless it shall be kept', async () => {
  await begin({server: {key: 'secret'}});
  await page.locator('#key-dialog[open]').waitFor();
  await page.fill('#key', 'wrong');
  await page.keyboard.press('Enter');
  await page.getByText(/The key was not accepted/).waitFor();
  await page.fill('#key', 'secret');
  await page.keyboard.press('Enter');
  await ready(page);
  await say(page, 'Hi');
  assert.equal(await lastAnswer(page), 'Hello.');
  await page.reload();
  await page.locator('#key-dialog[open]').waitFor();
  await page.fill('#key', 'secret');
  await page.check('#key-keep');
  await button('Use this key').click();
  await ready(page);
  await page.reload();
  await ready(page);
});

test('a key that is asked for in the middle: the message is sent once there is one', async () => {
  await begin();
  await ready(page);
  server.key = 'secret';
  await say(page, 'Hi');
  await page.locator('#key-dialog[open]').waitFor();
  await page.fill('#key', 'secret');
  await page.keyboard.press('Enter');
  await see('Hello.');
  assert.equal(await page.locator('.turn').count(), 2);
});

test('light and dark follow the system, and the switch', async () => {
  await begin({options: {colorScheme: 'light'}});
  assert.equal(await background(), 'rgb(252, 250, 245)');
  await page.emulateMedia({colorScheme: 'dark'});
  assert.equal(await background(), 'rgb(23, 26, 23)');
  await button('Theme: as the system').click();
  assert.equal(await background(), 'rgb(252, 250, 245)');
  await page.reload();
  assert.equal(await background(), 'rgb(252, 250, 245)');
  await button('Theme: light').click();
  await page.emulateMedia({colorScheme: 'light'});
  assert.equal(await background(), 'rgb(23, 26, 23)');
  await button('Theme: dark').waitFor();
});

test('text has enough contrast in both themes', async () => {
  await begin({options: {colorScheme: 'light'}});
  for (const scheme of ['light', 'dark']) {
    await page.emulateMedia({colorScheme: scheme});
    const low = await page.evaluate(() => {
      const probe = document.body.appendChild(document.createElement('span'));
      const luminance = name => {
        probe.style.color = `var(--${name})`;
        const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const pairs = [];
      for (const paper of ['paper', 'raised', 'sunken', 'tint', 'leaf-wash']) for (const ink of ['ink', 'soft']) pairs.push([ink, paper]);
      for (const ink of ['code-keyword', 'code-string', 'code-number', 'code-comment', 'code-title', 'leaf', 'alarm', 'spadix-ink']) pairs.push([ink, 'sunken']);
      pairs.push(['on-leaf', 'leaf'], ['alarm', 'alarm-wash'], ['ink', 'alarm-wash'], ['leaf-deep', 'leaf-wash'], ['leaf', 'paper'], ['spadix-ink', 'paper']);
      const low = pairs.map(([ink, paper]) => {
        const [a, b] = [luminance(ink), luminance(paper)].sort((x, y) => y - x);
        return [`${ink} on ${paper}`, (a + 0.05) / (b + 0.05)];
      }).filter(([, ratio]) => ratio < 4.5);
      probe.remove();
      return low;
    });
    assert.deepEqual(low, [], scheme);
  }
});

test('keys: Enter, Shift+Enter, Escape, arrow up, Ctrl+K', async () => {
  await begin();
  await ready(page);
  await page.keyboard.type('one');
  await page.keyboard.press('Shift+Enter');
  await page.keyboard.type('two');
  await page.keyboard.press('Enter');
  await done(page);
  assert.equal(server.requests[0].messages[0].content, 'one\ntwo');
  server.script([{content: 'Endless'}, {hold: true}]);
  await say(page, 'More', {wait: false});
  await see('Endless');
  await page.keyboard.press('Escape');
  await see('Stopped.');
  assert.equal(await focused(), 'input');
  await page.keyboard.press('ArrowUp');
  assert.equal(await focused(), 'Edit your message');
  assert.equal(await page.getByLabel('Edit your message').inputValue(), 'More');
  await page.keyboard.press('Escape');
  await page.keyboard.press('Control+k');
  assert.equal(await focused(), 'search');
  await page.keyboard.type('one');
  await page.getByText('Found', {exact: true}).waitFor();
  await page.keyboard.press('ArrowDown');
  assert.equal(await focused(), 'open');
  await page.keyboard.press('Tab');
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(outline, 'solid');
});

test('the list: new, search in messages, rename, delete and undo', async () => {
  await begin();
  await ready(page);
  server.script([{content: 'Bananas are yellow.'}], [{content: 'Grass is green.'}]);
  await say(page, 'Fruit');
  await button('New conversation').click();
  await see('What is on your mind?');
  await say(page, 'Meadows');
  assert.deepEqual(await titles(), ['Meadows', 'Fruit']);
  await page.fill('#search', 'YELLOW');
  await page.locator('.entry .found').waitFor();
  assert.deepEqual(await titles(), ['Fruit']);
  assert.equal(await page.locator('.entry .found').innerText(), 'Bananas are yellow.');
  await page.keyboard.press('Enter');
  await see('Bananas are yellow.');
  await page.focus('#search');
  await page.keyboard.press('Escape');
  await page.waitForFunction(() => document.querySelectorAll('.entry').length === 2);
  await page.locator('.entry', {hasText: 'Fruit'}).hover();
  await button('Rename Fruit').click();
  await page.keyboard.type('Yellow things');
  await page.keyboard.press('Enter');
  await page.locator('#title', {hasText: 'Yellow things'}).waitFor();
  await page.locator('.entry', {hasText: 'Yellow things'}).hover();
  await button('Delete Yellow things').click();
  await see('What is on your mind?');
  await button('Undo').click();
  await see('Bananas are yellow.');
  await page.reload();
  await see('Bananas are yellow.');
  assert.deepEqual((await titles()).sort(), ['Meadows', 'Yellow things']);
  await page.goBack();
});

test('export and import', async () => {
  await begin();
  await ready(page);
  await say(page, 'Keep this');
  await button('Answer again').click();
  await see('2 / 2');
  await done(page);
  const [download] = await Promise.all([page.waitForEvent('download'), button('Export').click()]);
  const path = await download.path();
  const file = JSON.parse(await readFile(path, 'utf8'));
  assert.equal(file.format, 'calla-conversations');
  assert.equal(file.conversations[0].messages.length, 3);
  file.conversations[0].messages[0].content = 42;  // anyone may have written the file
  file.conversations[0].messages.push({role: 'system', id: 'x', parent: ''}, null, {role: 'user', id: 'y', parent: 'nowhere'});
  await page.setInputFiles('#import-file', {name: 'a.json', mimeType: 'application/json', buffer: Buffer.from(JSON.stringify(file))});
  await page.getByText('1 conversation imported.').waitFor();
  assert.deepEqual(await titles(), ['Keep this', 'Keep this']);
  await page.locator('.entry:not(.current) .open').click();
  await page.waitForFunction(() => document.querySelector('.bubble')?.textContent === '');
  await see('2 / 2');
  await page.setInputFiles('#import-file', {name: 'b.json', mimeType: 'application/json', buffer: Buffer.from('{"a": 1}')});
  await page.getByText(/^Nothing was imported/).waitFor();
});

test('on a small screen the list is a drawer, and nothing is cut off', async () => {
  await begin({options: {viewport: {width: 375, height: 700}, hasTouch: true, isMobile: true}});
  await ready(page);
  server.script([{content: `\`\`\`\n${'long '.repeat(80)}\n\`\`\`\n\n|a|b|c|d|e|f|\n|-|-|-|-|-|-|\n|${'cell cell|'.repeat(6)}\n\n${'word'.repeat(60)}\n\n\`${'code'.repeat(50)}\``}]);
  await page.fill('#input', 'x'.repeat(200));
  await page.tap('#send');
  await done(page);
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 375);
  assert.ok(await page.evaluate(() => document.getElementById('scroll').scrollWidth <= 375));
  assert.equal(await page.locator('#sidebar').isVisible(), false);
  await page.tap('#menu');
  await page.locator('#sidebar').waitFor();
  assert.equal(await page.evaluate(() => document.getElementById('main').inert), true);
  await page.keyboard.press('Escape');
  await page.locator('#sidebar').waitFor({state: 'hidden'});
  assert.equal(await focused(), 'menu');
  await page.tap('#menu');
  await page.touchscreen.tap(360, 400);
  await page.locator('#sidebar').waitFor({state: 'hidden'});
  await page.tap('#settings-button');
  assert.equal(await focused(), 'Close settings');
  await page.tap('[aria-label="Close settings"]');
  await page.fill('#input', 'a');
  await page.press('#input', 'Enter');  // a thumb's Enter is a new line
  assert.equal(await page.inputValue('#input'), 'a\n');
});

test('what listeners hear: finished parts, and the end', async () => {
  await begin();
  await ready(page);
  await page.evaluate(() => {
    window.heard = [];
    new MutationObserver(() => window.heard.push(document.getElementById('announcer').textContent)).observe(document.getElementById('announcer'), {childList: true});
  });
  server.script([{pieces: 'First.\n\n```js\na\nb\n```\n\nLast words.', size: 1, every: 2}]);
  await say(page, 'Speak');
  await page.waitForFunction(() => window.heard.at(-1)?.includes('Answer complete.'));
  const heard = await page.evaluate(() => window.heard);
  assert.ok(heard.length <= 3, heard.join(' | '));
  assert.equal(heard.join('\n'), 'First.\nCode, js, 2 lines.\nLast words.\nAnswer complete.');
});

test('where the browser keeps nothing, the page says so and works', async () => {
  await begin({before: () => {
    Object.defineProperty(window, 'indexedDB', {get() { throw new DOMException('no', 'SecurityError'); }});
    Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError'); }});
  }});
  await ready(page);
  await see(/lets the page keep nothing/);
  await say(page, 'One');
  await button('New conversation').click();
  await page.locator('.entry .open').click();
  await see('Hello.');
});

test('full storage is said, and the answer still shown', async () => {
  await begin({before: () => {
    IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError'); };
  }});
  await ready(page);
  await say(page, 'One');
  await see('Hello.');
  await see(/storage is full/);
});

test('a second tab sees the answer grow, and may stop it', async () => {
  await begin();
  await ready(page);
  server.script([{content: 'Shared'}, {hold: true}, {content: ' never'}]);
  await say(page, 'Hi', {wait: false});
  await see('Shared');
  const other = await visitor.open();
  await other.locator('.entry .open').click();
  await other.locator('main').getByText('Shared', {exact: true}).waitFor();
  await other.waitForTimeout(900);  // long enough to find out that the answer is not forsaken
  assert.equal(await other.locator('.note').count(), 0);
  await other.getByRole('button', {name: 'Stop', exact: true}).click();
  await see('Stopped.');
  await other.locator('main').getByText('Stopped.', {exact: true}).waitFor();
  await other.getByRole('button', {name: 'Answer again', exact: true}).waitFor();
});

test('an answer goes on while another conversation is looked at', async () => {
  await begin();
  await ready(page);
  server.script([{content: 'Begun'}, {hold: true}, {content: ' and done.'}], [{content: 'Other.'}]);
  await say(page, 'First', {wait: false});
  await see('Begun');
  await button('New conversation').click();
  await page.locator('.entry .busy').waitFor();
  await page.fill('#input', 'Second');
  await page.keyboard.press('Enter');
  await see('Other.');
  server.release();
  await page.locator('.entry .busy').waitFor({state: 'detached'});
  await page.locator('.entry', {hasText: 'First'}).locator('.open').click();
  await see('Begun and done.');
});
