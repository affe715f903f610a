// A server for the tests: the page under the Content-Security-Policy it is meant for, and an OpenAI API that does what
// a test tells it to.
//
// What is answered is a list of steps, set by `script` for the next requests (the last one repeats):
//   {reasoning}, {content}, {calls}      one delta each        {pieces: text, size}  content, cut in pieces
//   {wait: ms}                           silence               {error}               an error object in the stream
//   {drop: true}                         the connection ends   {status, body}        no stream: this answer
//   {hold: true}                         silence until `release` is called
// Without an end of its own a script ends with finish_reason "stop", usage and [DONE].
import {createHash} from 'node:crypto';
import {readFileSync} from 'node:fs';
import {createServer} from 'node:http';
import {fileURLToPath} from 'node:url';

const PAGE = fileURLToPath(new URL('../../src/server/page/index.html', import.meta.url));

export function policyOf(html) {
  const hash = tag => {
    const found = [...html.matchAll(new RegExp(`<${tag}>([\\s\\S]*?)</${tag}>`, 'g'))];
    if (found.length !== 1) throw new Error(`expected one <${tag}>, found ${found.length}`);
    return `'sha256-${createHash('sha256').update(found[0][1]).digest('base64')}'`;
  };
  return `default-src 'none'; script-src ${hash('script')}; style-src ${hash('style')}; img-src data:; connect-src 'self'; ` +
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
}

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

export class TestServer {
  health = {status: 200, body: {status: 'ok'}};
  key = null;
  scripts = [[{content: 'Hello.'}]];
  requests = [];  // bodies of completions
  aborted = 0;    // completions whose client went away
  context = 32768;

  async start(port = 0) {
    this.http = createServer((request, response) => this.#answer(request, response).catch(() => response.destroy()));
    await new Promise(resolve => this.http.listen(port, '127.0.0.1', resolve));
    this.port = this.http.address().port;
    this.url = `http://127.0.0.1:${this.port}/`;
    return this;
  }

  async stop() {
    this.http.closeAllConnections();
    await new Promise(resolve => this.http.close(resolve));
  }

  script(...scripts) {
    this.scripts = scripts.map(one => Array.isArray(one) ? one : [one]);
  }

  release() { this.released?.(); }

  #json(response, status, body, headers = {}) {
    response.writeHead(status, {'Content-Type': 'application/json', ...headers});
    response.end(JSON.stringify(body));
  }

  async #answer(request, response) {
    const {pathname} = new URL(request.url, this.url);
    if (pathname === '/') {
      const html = readFileSync(PAGE, 'utf8');
      response.writeHead(200, {'Content-Type': 'text/html; charset=utf-8', 'Content-Security-Policy': policyOf(html)});
      return response.end(html);
    }
    if (pathname === '/health') return this.#json(response, this.health.status, this.health.body);
    if (this.key && request.headers.authorization !== `Bearer ${this.key}`) {
      return this.#json(response, 401, {error: {message: 'A valid API key is needed.', type: 'authentication_error', code: 'invalid_api_key'}});
    }
    if (pathname === '/v1/models') {
      return this.#json(response, 200, {object: 'list', data: [{id: 'qwen3.6-35b-a3b', object: 'model', context_length: this.context,
        generation_config: {temperature: 1, top_k: 20, top_p: 0.95}}]});
    }
    if (pathname === '/v1/chat/completions' && request.method === 'POST') return this.#complete(request, response);
    this.#json(response, 404, {error: {message: `There is no ${pathname}.`}});
  }

  async #complete(request, response) {
    let text = '';
    for await (const piece of request) text += piece;
    const body = JSON.parse(text);
    this.requests.push(body);
    const steps = this.scripts.length > 1 ? this.scripts.shift() : this.scripts[0];
    if (steps[0].status) return this.#json(response, steps[0].status, steps[0].body, steps[0].headers);

    let gone = false;
    response.on('close', () => {
      if (!response.writableFinished) { gone = true; this.aborted++; this.release(); }
    });
    response.writeHead(200, {'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store'});
    const frame = {id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: body.model};
    const send = value => response.write(`data: ${typeof value === 'string' ? value : JSON.stringify(value)}\n\n`);
    let tokens = 0, finish = 'stop';
    const delta = (fields, finish_reason = null) => {
      tokens++;
      send({...frame, choices: [{index: 0, delta: fields, finish_reason}], usage: null});
    };
    response.write(': keep-alive\n\n');
    delta({role: 'assistant', content: ''});
    for (const step of steps) {
      if (gone) return;
      if (step.reasoning) delta({reasoning_content: step.reasoning});
      if (step.content) delta({content: step.content});
      if (step.calls) { delta({tool_calls: step.calls}); finish = 'tool_calls'; }
      if (step.pieces) {
        for (let at = 0; at < step.pieces.length && !gone; at += step.size ?? 4) {
          delta({[step.as ?? 'content']: step.pieces.slice(at, at + (step.size ?? 4))});
          if (step.every) await pause(step.every);
        }
      }
      if (step.finish) finish = step.finish;
      if (step.wait) await pause(step.wait);
      if (step.hold) await new Promise(resolve => { this.released = resolve; });
      if (step.drop) return response.destroy();
      if (step.error) {
        send({error: {message: step.error, type: 'server_error'}});
        send('[DONE]');
        return response.end();
      }
    }
    delta({}, finish);
    if (body.stream_options?.include_usage) {
      const prompt = 10 * body.messages.length;
      send({...frame, choices: [], usage: {prompt_tokens: prompt, completion_tokens: tokens, total_tokens: prompt + tokens,
                                           prompt_tokens_details: {cached_tokens: 0}}});
    }
    send('[DONE]');
    response.end();
  }
}
