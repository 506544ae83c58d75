// openapi.json as a page that needs nothing from elsewhere.

const spec = await (await fetch("/openapi.json")).json();
const model = await (await fetch("/v1/model")).json();

function element(tag, content, name = "") {
  const made = document.createElement(tag);
  made.className = name;
  made.append(...[content].flat());
  return made;
}

function resolve(schema) {
  const name = schema.$ref?.split("/").at(-1);
  return name ? spec.components.schemas[name] : schema;
}

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(typeOf).filter(type => type !== "null").join(" or ");
  if (schema.format === "binary") return "file";
  return schema.type === "array" ? `list of ${typeOf(schema.items)}` : (schema.type ?? "");
}

function fields(schema) {
  const found = resolve(schema.type === "array" ? schema.items : schema);
  const rows = Object.entries(found.properties ?? {}).map(([name, field]) =>
    element("div", [element("dt", [name, element("small", typeOf(field))]), element("dd", field.description ?? "")]));
  return element("dl", rows);
}

function section(path, verb, route) {
  const title = element("h2", element("code", [element("span", verb.toUpperCase(), "verb"), ` ${path}`]));
  const parts = [title, element("p", route.description ?? "")];
  for (const [kind, { schema }] of Object.entries(route.requestBody?.content ?? {})) parts.push(element("h4", `Send, as ${kind}`), fields(schema));
  const answer = route.responses["200"]?.content?.["application/json"]?.schema;
  if (answer) parts.push(element("h4", "Get"), fields(answer));
  for (const name of inside(answer)) parts.push(element("h4", name), fields(spec.components.schemas[name]));
  const refusals = Object.entries(route.responses).filter(([code]) => code !== "200");
  if (refusals.length) parts.push(element("h4", "Refused, with one sentence as error"), element("dl", refusals.map(([code, { description }]) => element("div", [element("dt", code), element("dd", description)]))));
  return element("section", parts);
}

// The kinds of things that an answer is made of.
function inside(schema) {
  const fields = Object.values(resolve(schema ?? {})?.properties ?? {});
  return fields.flatMap(field => [field, field.items, ...(field.anyOf ?? [])]).map(part => part?.$ref?.split("/").at(-1)).filter(Boolean);
}

function example() {
  const { origin } = location;
  if (model.input.kind === "image") return `curl -F images=@cat.jpg -F images=@dog.jpg -F trace=true ${origin}/v1/predict`;
  const rows = model.input.columns
    ? { rows: [Object.fromEntries(model.input.columns.map(({ name, values, date }) => [name, values?.[0] ?? date ?? 0]))] }
    : { features: [Array(model.input.shape[0]).fill(0)] };
  return `curl --json '${JSON.stringify({ ...rows, max_steps: 5 })}' ${origin}/v1/predict`;
}

document.getElementById("example").textContent = example();
for (const [path, routes] of Object.entries(spec.paths)) {
  for (const [verb, route] of Object.entries(routes)) document.getElementById("paths").append(section(path, verb, route));
}
