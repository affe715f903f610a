// Markdown to DOM: what it makes, that it makes nothing harmful, and that pieces give the same as the whole.
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import {launch, visit} from './browser.mjs';

let browser, visitor, page;
before(async () => {
  browser = await launch();
  visitor = await visit(browser);
  page = visitor.page;
});
after(async () => {
  await visitor.close();
  await browser.close();
});

/** The HTML of finished Markdown, or of Markdown that more may follow. */
const html = (text, ended = true) => page.evaluate(([text, ended]) => {
  const host = document.createElement('div');
  new MarkdownView(host).show(text, ended);
  return host.innerHTML;
}, [text, ended]);

const CASES = {
  'paragraphs and line breaks': ['a\nb\n\nc', '<p>a<br>b</p><p>c</p>'],
  'emphasis': ['*a* **b** ***c*** _d_ ~~e~~ snake_case_name 2 * 3 * 4', '<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <em>d</em> <del>e</del> snake_case_name 2 * 3 * 4</p>'],
  'emphasis beside Chinese punctuation': ['**重要：**后面', '<p><strong>重要：</strong>后面</p>'],
  'headings begin at the third level': ['# A\n## B ##\n#no', '<h3>A</h3><h4>B</h4><p>#no</p>'],
  'a rule never makes a heading': ['a\n---\nb', '<p>a</p><hr><p>b</p>'],
  'code spans': ['`a*b*` ``c`d`` `` ` ``', '<p><code>a*b*</code> <code>c`d</code> <code>`</code></p>'],
  'nested lists': ['- a\n  - b\n- c', '<ul class="tight"><li><p>a</p><ul class="tight"><li><p>b</p></li></ul></li><li><p>c</p></li></ul>'],
  'a list in an ordered one, indented by two': ['1. a\n  - b\n2. c', '<ol class="tight"><li><p>a</p><ul class="tight"><li><p>b</p></li></ul></li><li><p>c</p></li></ol>'],
  'an ordered list keeps its start': ['3. a\n4. b', '<ol class="tight" start="3"><li><p>a</p></li><li><p>b</p></li></ol>'],
  'a loose list': ['- a\n\n- b', '<ul class="loose"><li><p>a</p></li><li><p>b</p></li></ul>'],
  'tasks': ['- [x] a\n- [ ] b', '<ul class="tight"><li class="task done"><p>a</p></li><li class="task"><p>b</p></li></ul>'],
  'a quote with a lazy line': ['> a\nb\n\nc', '<blockquote><p>a<br>b</p></blockquote><p>c</p>'],
  'a table': ['|a|b|\n|-|-:|\n|`x|y`|1\\|2|\nno', '<div class="table"><table><thead><tr><th scope="col">a</th><th class="right" scope="col">b</th></tr></thead><tbody><tr><td><code>x|y</code></td><td class="right">1|2</td></tr><tr><td>no</td><td class="right"></td></tr></tbody></table></div>'],
  'a table right after a paragraph': ['t\n|a|b|\n|--|--|\n', '<p>t</p><div class="table"><table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead><tbody></tbody></table></div>'],
  'math is left as it is': ['$a_1 * b_2$ and \\(x_i^*\\), 5$ to 6$', '<p><span class="math">$a_1 * b_2$</span> and <span class="math">\\(x_i^*\\)</span>, 5$ to 6$</p>'],
  'math of several lines': ['$$\na\n- b\n$$\nc', '<p class="math">$$\na\n- b\n$$</p><p>c</p>'],
  'entities and escapes': ['&lt;b&gt; \\*a\\* &amp;', '<p>&lt;b&gt; *a* &amp;</p>'],
  'the one tag that is kept': ['a<br>b<br/>c', '<p>a<br>b<br>c</p>'],
};
for (const [name, [text, expected]] of Object.entries(CASES)) {
  test(name, async () => assert.equal(await html(text), expected));
}

const code = text => page.evaluate(text => {
  const host = document.createElement('div');
  new MarkdownView(host).show(text, true);
  return [...host.children].map(one => one.tagName === 'FIGURE' ? [one.querySelector('figcaption span').textContent, one.querySelector('code').textContent] : one.textContent);
}, text);

test('fences: language, nesting, in lists, never closed', async () => {
  assert.deepEqual(await code('```js\na\n```\nb'), [['js', 'a\n'], 'b']);
  assert.deepEqual(await code('````\n```\na\n```\n````\nb'), [['text', '```\na\n```\n'], 'b']);
  assert.deepEqual(await code('```markdown\n```js\na\n```\nb\n```\nc'), [['markdown', '```js\na\n```\nb\n'], 'c']);
  assert.deepEqual(await code('~~~\n```\n~~~'), [['text', '```\n']]);
  assert.deepEqual(await code('```c++\nint a;\n\n  b'), [['c++', 'int a;\n\n  b\n']]);
  assert.deepEqual(await code('a\n\n    b\n\n      c\n\nd'), ['a', ['text', 'b\n\n  c\n'], 'd']);
  assert.equal(await html('1. a\n   ```\n   x\n  y\n```\n2. b').then(text => (text.match(/<li>/g) ?? []).length), 2);
});

test('highlighting changes no character', async () => {
  const text = 'const a = `x\n${1}` /* c\n */ + "d\\"" // e\nfor (;;) f(0x1F, \'g\')\n';
  for (const name of ['js', 'python', 'c', 'sql', 'html', 'yaml', 'bash', 'diff', 'css', 'nonsense']) {
    assert.deepEqual(await code(`\`\`\`${name}\n${text}\`\`\``), [[name, text]]);
  }
  assert.match(await html('```js\n/* a\nb */ let c\n```'), /<span class="c">b \*\/<\/span> <span class="k">let<\/span>/);
});

test('links: three protocols, nothing else', async () => {
  const links = text => page.evaluate(text => {
    const host = document.createElement('div');
    new MarkdownView(host).show(text, true);
    return [...host.querySelectorAll('a')].map(one => [one.textContent, one.getAttribute('href'), one.rel]);
  }, text);
  const rel = 'noopener noreferrer nofollow';
  assert.deepEqual(await links('[a **b**](https://x.org/c_(d)?e "t") <mailto:f@g.org> see https://h.org/i_j, (https://k.org/l).'), [
    ['a b', 'https://x.org/c_(d)?e', rel], ['mailto:f@g.org', 'mailto:f@g.org', rel], ['https://h.org/i_j', 'https://h.org/i_j', rel], ['https://k.org/l', 'https://k.org/l', rel]]);
  assert.deepEqual(await links('![a cat](https://x.org/c.png)'), [['Image: a cat', 'https://x.org/c.png', rel]]);
  for (const address of ['javascript:alert(1)', 'JaVaScRiPt:alert(1)', '&#106;avascript:alert(1)', 'java\tscript:alert(1)', ' javascript:alert(1)', '<javascript:alert(1)>',
                         'data:text/html,<script>alert(1)</script>', 'vbscript:x', 'file:///etc/passwd', 'blob:0123', '//x.org', '/relative', 'about:blank', '\u0001javascript:alert(1)']) {
    assert.deepEqual(await links(`[a](${address}) ![b](${address})`), [], address);
  }
});

const HOSTILE = [
  '<img src=x onerror="window.hacked=1">', '<script>window.hacked=1</script>', '</script><script>window.hacked=1</script>', '<svg onload=window.hacked=1>',
  '[a](javascript:window.hacked=1)', '<a href="javascript:window.hacked=1">b</a>', '`<img onerror=1>`', '```<img src=x onerror=1>\n<img src=x onerror=1>', '```"><img src=x onerror=1>\nx',
  '|<img src=x onerror=1>|b|\n|-|-|\n|<script>1</script>|c|', '# <iframe srcdoc="<script>1</script>">', '- <style>*{display:none}</style>', '[<img src=x onerror=1>](https://x.org)',
  '[a](https://x.org "<img onerror=1>")', '[a](https://x.org"onmouseover="window.hacked=1)', '<https://x.org"onmouseover="window.hacked=1>', 'https://x.org/"onmouseover="window.hacked=1', '![a"onload="1](https://x.org)',
  '``` `` ` ``` `` `', '`'.repeat(5000), '*'.repeat(5000), '**a '.repeat(2000), '['.repeat(3000), '[a]('.repeat(2000), '> '.repeat(3000), '- '.repeat(3000), '_a*'.repeat(2000), '|'.repeat(3000) + '\n' + '|-'.repeat(3000),
  '$'.repeat(3001), '\\('.repeat(2000), '&lt;img src=x onerror=1&gt;', '\u202ethgir ot tfel\u202c', '\u200b\u200d\ufeff\u2066x', '\0\u0001\u001b[31m', '\ud800 alone', '<!--', '<![CDATA[', '<math><mtext><table><mglyph><style><img src=x onerror=1>',
];
test('hostile text stays text', async () => {
  const result = await page.evaluate(async texts => {
    const allowed = new Set('P BR EM STRONG DEL CODE SPAN A UL OL LI H3 H4 H5 H6 BLOCKQUOTE HR DIV TABLE THEAD TBODY TR TH TD FIGURE FIGCAPTION BUTTON PRE'.split(' '));
    const attributes = new Set(['class', 'href', 'title', 'target', 'rel', 'start', 'scope', 'type', 'data-copy', 'aria-label', 'data-name']);
    const wrong = [];
    for (const text of texts) {
      for (const ended of [true, false]) {
        const host = document.createElement('div');
        document.body.append(host);
        new MarkdownView(host).show(text, ended);
        for (const one of host.querySelectorAll('*')) {
          if (!allowed.has(one.tagName)) wrong.push([text, one.tagName]);
          for (const {name} of one.attributes) if (!attributes.has(name)) wrong.push([text, name]);
          if (one.href && !/^(https?|mailto):/.test(one.href)) wrong.push([text, one.href]);
        }
        host.remove();
      }
    }
    await new Promise(resolve => setTimeout(resolve, 50));
    return {wrong: wrong.map(one => one.join(' -> ').slice(0, 200)), hacked: window.hacked};
  }, HOSTILE);
  assert.deepEqual(result, {wrong: [], hacked: undefined});
  assert.match(await html('<img src=x onerror=1>'), /^<p>&lt;img src=x onerror=1&gt;<\/p>$/);
});

test('characters that turn the direction of text are shown', async () => {
  assert.equal(await html('a\u202eb'), '<p>a<span class="control" data-name="U+202E">\u202e</span>b</p>');
  assert.deepEqual(await code('```c\nif (a\u2066) // b\n```'), [['c', 'if (a\u2066) // b\n']]);  // and copied as they are
});

const DOCUMENT = `# Title with **bold**

A paragraph with *emphasis*, \`code\`, a [link](https://example.org/a_(b)) and https://example.org/c.
Its second line; $x_1^2$ and \\(y\\).

1. first
   - nested **two
     lines**
2. second

   loose, with code:

   \`\`\`python
   def f(x):
       """long
       string"""
       return x  # comment
   \`\`\`
3. third

> quoted
> - list
>
> | a | b |
> |---|:-:|
> | 1 | \`|\` |
lazy

| Head | Other |
|:-----|------:|
| cell | **x** |
| <br> | $a|b$ |

- [x] done
- [ ] open
***
    indented

    code

$$
\\sum_i x_i
$$

~~gone~~ **unclosed *nest** of* marks \`open

\`\`\`\`markdown
\`\`\`js
let a = \`1
2\`
\`\`\`
\`\`\`\`
* * *
+ plus
  1) deep
     + deeper\r
     still
\ttab
end **bold`;

test('pieces give what the whole gives, at every point', async () => {
  const mismatches = await page.evaluate(([documents, rounds]) => {
    let seed = 12345;
    const random = n => (seed = (Math.imul(seed, 1103515245) + 12345) >>> 0) / 2 ** 32 * n | 0;
    const whole = (text, ended) => {
      const host = document.createElement('div');
      new MarkdownView(host).show(text, ended);
      return host;
    };
    const wrong = [];
    for (const text of documents) {
      const finished = whole(text, true);
      for (let round = 0; round < rounds; round++) {
        const host = document.createElement('div');
        const view = new MarkdownView(host);
        const longest = [1, 3, 10, 60][round % 4];
        for (let at = 0; at < text.length;) {
          at = Math.min(text.length, at + 1 + random(longest));
          view.show(text.slice(0, at), false);
          if ((round < 4 || random(20) === 0) && !host.isEqualNode(whole(text.slice(0, at), false))) wrong.push(['at', text.slice(Math.max(0, at - 40), at)]);
        }
        view.show(text, true);
        if (!host.isEqualNode(finished)) wrong.push(['end', round]);
      }
    }
    return wrong.slice(0, 3);
  }, [[DOCUMENT, ...HOSTILE.filter(text => text.length < 300), HOSTILE.join('\n'), [...DOCUMENT].reverse().join('')].map(text => text.slice(0, 2500)), 8]);
  assert.deepEqual(mismatches, []);
});

test('a piece at the end of a long answer touches its end alone', async () => {
  const records = await page.evaluate(async document_ => {
    const text = `${document_}\n\n`.repeat(80) + '```js\n' + 'const a = 1;\n'.repeat(2000);
    const host = document.body.appendChild(document.createElement('div'));
    const view = new MarkdownView(host);
    view.show(text, false);
    let records = 0;
    const observer = new MutationObserver(list => { records += list.length; });
    observer.observe(host, {subtree: true, childList: true, characterData: true, attributes: true});
    for (const piece of ['let', ' b', ' = 2', ';\n', '``', '`\n', 'So', ' it **', 'is**']) {
      view.show(view.text + piece, false);
    }
    await Promise.resolve();
    records += observer.takeRecords().length;
    host.remove();
    return records;
  }, DOCUMENT);
  assert.ok(records > 5 && records < 60, `${records} mutations`);
});

test('text that grows keeps its DOM node, and so a selection', async () => {
  assert.ok(await page.evaluate(() => {
    const host = document.createElement('div');
    const view = new MarkdownView(host);
    view.show('One two', false);
    const node = host.querySelector('p').firstChild;
    view.show('One two three', false);
    return host.querySelector('p').firstChild === node && node.data === 'One two three';
  }));
});

test('marks that are open at the end do not show while an answer grows', async () => {
  assert.equal(await html('a **bo', false), '<p>a <strong>bo</strong></p>');
  assert.equal(await html('a **', false), '<p>a </p>');
  assert.equal(await html('a `co', false), '<p>a <code>co</code></p>');
  assert.equal(await html('see [the site](https://exam', false), '<p>see the site</p>');
  assert.equal(await html('a **bo', true), '<p>a **bo</p>');
});

test('the page complained of nothing', () => assert.deepEqual(visitor.complaints, []));
