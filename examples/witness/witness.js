// A witness for `firstflight audit --witness`: counts how often each request was executed.
//
// Call `witness` for a path of a Node server, in one process, or run it: node witness.js 9099
const http = require("node:http");

const counts = new Map();

function witness(request, response) {
  const query = request.url.split("?").slice(1).join("?");
  const executions = (counts.get(query) ?? 0) + 1;
  counts.set(query, executions);
  if (counts.size > 10_000) counts.delete(counts.keys().next().value);
  const early_data = request.headers["early-data"] ?? null;
  const body = JSON.stringify({ executions, early_data });
  response.writeHead(200, {
    "Content-Type": "application/json",
    "Content-Length": Buffer.byteLength(body),
    "Cache-Control": "no-store",
  });
  response.end(body);
}

module.exports = witness;
if (require.main === module) {
  http.createServer(witness).listen(Number(process.argv[2]), "127.0.0.1");
}
