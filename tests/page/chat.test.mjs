// A conversation: sending, streaming, stopping, branches, errors, tool calls.
import assert from 'node:assert/strict';
import {after, afterEach, before, beforeEach, test} from 'node:test';
import {done, lastAnswer, launch, ready, say, visit} from './browser.mjs';

let browser, visitor, page, server;
before(async () => { browser = await launch(); });
after(() => browser.close());
beforeEach(async () => {
  visitor = await visit(browser);
  ({page, server} = visitor);
  await ready(page);
});
afterEach(async () => {
  await visitor.close();
  assert.deepEqual(visitor.complaints, []);
});

const button = (name, scope = page) => scope.getByRole('button', {name, exact: true});
/** Waits until the conversation shows this text; the words for listeners do not count. */
const see = text => page.locator('main').getByText(text, {exact: typeof text === 'string'}).last().waitFor();
const last = role => page.locator(`.turn.${role}`).last();

test('sends what the API wants and streams the answer', async () => {
  server.script([{reasoning: 'Let me '}, {reasoning: 'see.'}, {pieces: 'The **answer** is 42.\n\n- one\n- two', size: 3}]);
  await say(page, 'What is the answer?');
  assert.equal(await lastAnswer(page), 'The answer is 42.\n\none\n\ntwo');
  const [body] = server.requests;
  assert.deepEqual(body.messages, [{role: 'user', content: 'What is the answer?'}]);
  assert.equal(body.model, 'qwen3.6-35b-a3b');
  assert.equal(body.stream, true);
  assert.deepEqual(body.stream_options, {include_usage: true});
  assert.deepEqual(body.chat_template_kwargs, {enable_thinking: true});
  assert.equal('temperature' in body, false);
  assert.match(await page.locator('#context').innerText(), /^\d+ of 32\.8k tokens$/);
  assert.match(await last('assistant').locator('.stats').innerText(), /^\d+ tokens/);
  assert.match(await page.title(), /^What is the answer\? · Calla$/);

  server.script([{content: 'Because.'}]);
  await say(page, 'Why?');
  assert.deepEqual(server.requests[1].messages.map(one => [one.role, one.content]), [
    ['user', 'What is the answer?'], ['assistant', 'The **answer** is 42.\n\n- one\n- two'], ['user', 'Why?']]);
});

test('shows the answer while it grows; thinking is folded and timed', async () => {
  server.script([{reasoning: 'Deep *thoughts*.'}, {hold: true}, {content: 'Half'}, {hold: true}, {content: ' and half.'}]);
  await say(page, 'Think.', {wait: false});
  await see(/^Thinking… \d+ s$/);
  assert.equal(await page.locator('.thought').isVisible(), false);
  await page.locator('.thinking summary').click();
  assert.equal(await page.locator('.thought em').innerText(), 'thoughts');
  server.release();
  await see('Half');
  await see(/^Thought for (a moment|\d+ s)$/);
  assert.equal(await button('Stop').count(), 1);
  server.release();
  await done(page);
  assert.equal(await lastAnswer(page), 'Half and half.');
});

test('shows how fast the answer comes, and how much of the context is used', async () => {
  server.script([{pieces: 'word '.repeat(60), size: 5, every: 20}]);
  await say(page, 'Fast?', {wait: false});
  await page.waitForFunction(() => /^[\d.]+ tokens\/s$/.test(document.getElementById('rate').textContent));
  await done(page);
  assert.match(await last('assistant').locator('.stats').innerText(), /^62 tokens · [\d.]+ tokens\/s$/);
  assert.equal(await page.locator('#context').getAttribute('aria-valuenow'), '72');
});

test('an answer without thinking is asked for as such', async () => {
  await page.click('#thinking');
  await say(page, 'Quick.');
  assert.deepEqual(server.requests[0].chat_template_kwargs, {enable_thinking: false});
});

test('stop ends the request and keeps what is there', async () => {
  server.script([{content: 'It was a dark'}, {hold: true}, {content: ' and stormy night.'}]);
  await say(page, 'Tell me.', {wait: false});
  await see('It was a dark');
  await button('Stop').click();
  await done(page);
  assert.equal(await lastAnswer(page), 'It was a dark');
  await see('Stopped.');
  await page.waitForFunction(() => document.getElementById('send').getAttribute('aria-label') === 'Send');
  while (server.aborted === 0) await new Promise(resolve => setTimeout(resolve, 20));
});

test('a reload keeps the conversation, the draft and, of a running answer, what had come', async () => {
  server.script([{content: 'First answer.'}], [{content: 'Half an'}, {hold: true}]);
  await say(page, 'One');
  await say(page, 'Two', {wait: false});
  await see('Half an');
  await page.fill('#input', 'a draft');
  await page.waitForTimeout(800);  // it is saved twice a second
  await page.reload();
  await see('Stopped.');
  assert.deepEqual(await page.locator('.turn').locator('.bubble, > .md').allInnerTexts(), ['One', 'First answer.', 'Two', 'Half an']);
  assert.equal(await page.inputValue('#input'), 'a draft');
  assert.equal(await page.locator('.entry.current .title').innerText(), 'One');
});

test('regenerating makes branches to walk between, also after a reload', async () => {
  server.script([{content: 'A'}], [{content: 'B'}], [{content: 'C'}], [{content: 'later'}]);
  await say(page, 'Choose.');
  for (const expected of ['B', 'C']) {
    await button('Answer again').click();
    await page.locator('.turn.assistant > .md', {hasText: expected}).waitFor();
    await done(page);
  }
  await see('3 / 3');
  assert.equal(await button('Next version').isDisabled(), true);
  await button('Previous version').click();
  await see('2 / 3');
  assert.equal(await lastAnswer(page), 'B');
  await say(page, 'Go on.');
  assert.deepEqual(server.requests.at(-1).messages.map(one => one.content), ['Choose.', 'B', 'Go on.']);
  await page.reload();
  await see('2 / 3');
  assert.equal(await page.locator('.turn').count(), 4);
  await button('Next version').click();
  await see('3 / 3');
  assert.equal(await page.locator('.turn').count(), 2);
});

test('editing a message makes a branch; cancelling makes none', async () => {
  server.script([{content: 'Of cats.'}], [{content: 'Of dogs.'}]);
  await say(page, 'Tell me of cats');
  await button('Edit message').click();
  await page.keyboard.press('Escape');
  assert.equal(await page.locator('.bubble').innerText(), 'Tell me of cats');
  await button('Edit message').click();
  await page.getByLabel('Edit your message').fill('Tell me of dogs');
  await page.keyboard.press('Enter');
  await see('Of dogs.');
  await done(page);
  assert.deepEqual(server.requests[1].messages, [{role: 'user', content: 'Tell me of dogs'}]);
  await button('Previous version').click();
  await see('Of cats.');
});

test('deleting a message takes what follows, and can be undone', async () => {
  await say(page, 'One');
  await say(page, 'Two');
  await button('Delete message', page.locator('.turn').nth(2)).click();
  await page.waitForFunction(() => document.querySelectorAll('.turn').length === 2);
  await button('Undo').click();
  await page.waitForFunction(() => document.querySelectorAll('.turn').length === 4);
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll('.turn').length === 4);
});

test('an error in the stream stands where it happened, and can be tried again', async () => {
  server.script([{content: 'Begun'}, {error: 'The device is out of memory.'}], [{content: 'Whole.'}]);
  await say(page, 'Try');
  await see('The answer broke off.');
  await see('The device is out of memory.');
  assert.equal(await lastAnswer(page), 'Begun');
  await button('Try again').click();
  await see('Whole.');
  await see('2 / 2');
});

test('refusals are explained', async () => {
  server.script({status: 429, body: {error: {message: 'The queue is full.', type: 'rate_limit_error'}}});
  await say(page, 'One');
  await see('The server is busy.');
  server.script({status: 400, body: {error: {message: 'The prompt has 40000 tokens, the context 32768.', code: 'context_length_exceeded'}}});
  await button('Try again').click();
  await see('This conversation is longer than the model can read.');
  await see(/40000 tokens, the context 32768/);
  assert.equal(await page.getByText(' / ').count(), 0);  // an empty failure is replaced, not kept as a branch
  server.script([{content: 'cut'}, {wait: 100}, {drop: true}]);
  await button('Try again').click();
  await see('The connection was lost.');
});

test('hostile answers and titles do no harm', async () => {
  const text = '<img src=x onerror="window.hacked=1"> [x](javascript:window.hacked=1)\n```"><script>window.hacked=1</script>\n</script><script>window.hacked=1</script>';
  server.script([{reasoning: text}, {pieces: text, size: 5}, {calls: [{index: 0, id: 'c', function: {name: text, arguments: text}}]}]);
  await say(page, text);
  await page.locator('.thinking summary').click();
  await page.click('#settings-button');
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator('.turn img, .turn script, .turn a, .sidebar img').count(), 0);
});

test('tool calls are cards, and their results go back to the model', async () => {
  await page.click('#settings-button');
  const tools = [{type: 'function', function: {name: 'weather', parameters: {type: 'object', properties: {city: {type: 'string'}}}}}];
  await page.getByLabel('Tools, as JSON').fill('[{');
  await page.getByText(/^Not used:/).waitFor();
  await page.getByLabel('Tools, as JSON').fill(JSON.stringify(tools));
  await page.getByLabel('System prompt').fill('Be brief.');
  server.script([{calls: [{index: 0, id: 'a', type: 'function', function: {name: 'weather', arguments: ''}}]}, {calls: [{index: 0, function: {arguments: '{"city": '}}]},
                 {calls: [{index: 0, function: {arguments: '"Oslo"}'}}]}, {calls: [{index: 1, id: 'b', type: 'function', function: {name: 'weather', arguments: '{}'}}]}],
                [{content: 'Rain.'}]);
  await say(page, 'Oslo?');
  assert.deepEqual(server.requests[0].tools, tools);
  assert.equal(await page.locator('.call').first().locator('pre').first().innerText(), '{\n  "city": "Oslo"\n}');
  await page.getByLabel('Result of weather').first().fill('5 degrees');
  await page.getByLabel('Result of weather').last().fill('unknown');
  await button('Send results').click();
  await see('Rain.');
  assert.deepEqual(server.requests[1].messages.slice(2), [
    {role: 'assistant', content: '', tool_calls: [{id: 'a', type: 'function', function: {name: 'weather', arguments: '{"city": "Oslo"}'}}, {id: 'b', type: 'function', function: {name: 'weather', arguments: '{}'}}]},
    {role: 'tool', tool_call_id: 'a', content: '5 degrees'}, {role: 'tool', tool_call_id: 'b', content: 'unknown'}]);
  assert.equal(server.requests[1].messages[0].content, 'Be brief.');
  await page.reload();
  await see('5 degrees');
});

test('sampling is sent when it is chosen, refused when it is nonsense, and reset', async () => {
  await page.click('#settings-button');
  assert.equal(await page.locator('#set-top_p').getAttribute('placeholder'), '0.95');
  await page.fill('#set-temperature', '0.6');
  await page.fill('#set-seed', '7');
  await page.fill('#set-top_p', '3');
  await page.getByText('Expected a number from 0 to 1.').waitFor();
  await say(page, 'One');
  assert.equal(server.requests[0].temperature, 0.6);
  assert.equal(server.requests[0].seed, 7);
  assert.equal('top_p' in server.requests[0], false);
  await button('Reset').click();
  await say(page, 'Two');
  assert.equal('temperature' in server.requests[1], false);
});

test('code and messages can be copied', async () => {
  await visitor.context.grantPermissions(['clipboard-read', 'clipboard-write']);
  server.script([{content: 'Text\n```js\nlet a;\n```'}]);
  await say(page, 'Code');
  await button('Copy code').click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'let a;\n');
  await button('Copy message', last('assistant')).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'Text\n```js\nlet a;\n```');
});

test('the view follows the answer until the person scrolls up, and again when asked', async () => {
  const lines = Array.from({length: 60}, (_, i) => `line ${i}\n\n`).join('');
  server.script([{content: lines}, {hold: true}, {content: lines}, {hold: true}, {content: 'The end.'}]);
  await say(page, 'Long', {wait: false});
  const atEnd = () => page.evaluate(() => { const s = document.getElementById('scroll'); return s.scrollHeight - s.scrollTop - s.clientHeight < 40; });
  await see('line 59');
  await page.waitForFunction(() => document.getElementById('scroll').scrollTop > 500);
  assert.equal(await atEnd(), true);
  await page.hover('#scroll');
  await page.mouse.wheel(0, -600);
  await page.locator('#latest').waitFor();
  const top = await page.evaluate(() => document.getElementById('scroll').scrollTop);
  server.release();
  await page.waitForFunction(() => document.querySelectorAll('.turn p').length > 119);
  assert.equal(await page.evaluate(() => document.getElementById('scroll').scrollTop), top);
  await page.click('#latest');
  assert.equal(await atEnd(), true);
  server.release();
  await done(page);
  await page.waitForTimeout(50);
  assert.equal(await atEnd(), true);
});
