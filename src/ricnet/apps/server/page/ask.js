// Requests to the server. Refusals and network errors become one sentence each.

export class Trouble extends Error {}

export async function getJSON(address) {
  return answerOf(() => fetch(address));
}

export async function askImage(blob, name, { signal, budget }) {
  const form = new FormData();
  form.append("images", blob, name);
  form.append("trace", "true");
  if (budget !== undefined) form.append("budget", budget);
  return firstOf(() => fetch("/v1/predict", { method: "POST", body: form, signal }));
}

export async function askNumbers(question, { signal, budget }) {
  const body = JSON.stringify({ ...question, budget, trace: true });
  const headers = { "content-type": "application/json" };
  return firstOf(() => fetch("/v1/predict", { method: "POST", body, headers, signal }));
}

async function firstOf(send) {
  return (await answerOf(send)).predictions[0];
}

async function answerOf(send) {
  let response, said;
  try {
    response = await send();
    said = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble(response ? "The server sent a response that cannot be read." : "The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw new Trouble(`That did not work: ${said.error ?? `the server refused with status ${response.status}.`}`);
  return said;
}
