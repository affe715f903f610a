// What must hold of the page's source for it to work under its Content-Security-Policy, whatever it does.
import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {test} from 'node:test';
import {policyOf} from './server.mjs';

const html = readFileSync(new URL('../../src/server/page/index.html', import.meta.url), 'utf8');
const script = /<script>([\s\S]*)<\/script>/.exec(html)[1];
const markup = html.replace(script, '').replace(/<style>[\s\S]*<\/style>/, '').replace(/<!--[\s\S]*?-->/g, '');

test('one script, one style, both known by their hashes', () => assert.match(policyOf(html), /script-src 'sha256-.{44}'; style-src 'sha256-.{44}'/));

test('no handlers, no styles and nothing from elsewhere in the markup', () => {
  assert.doesNotMatch(markup, /\s(on\w+|style)\s*=/i);
  assert.doesNotMatch(markup.replaceAll("xmlns='http://www.w3.org/2000/svg'", ''), /https?:|\/\//);
});

test('no markup or code from strings', () => {
  assert.doesNotMatch(script, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|setTimeout\(['"`]|\.srcdoc/);
});

test('every icon that is used is there, and every one that is there is used', () => {
  const there = [...html.matchAll(/<symbol id="i-([a-z]+)"/g)].map(found => found[1]).sort();
  const used = new Set([...html.matchAll(/href="#i-([a-z]+)"|\bicon(?:Button)?\('([a-z]+)'|icon\(busy \? '([a-z]+)' : '([a-z]+)'\)/g)].flatMap(found => found.slice(1).filter(Boolean)));
  assert.deepEqual(there, [...used].sort());
});
