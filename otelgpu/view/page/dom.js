// Elements. Text from data becomes text nodes and nothing else: there is no innerHTML in this program.

function el(tag, { class: names, text: content, on = {}, style = {}, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (names) element.className = names;
  if (content !== undefined) element.textContent = content;
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value);
  }
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  Object.assign(element.style, style);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const $ = (id) => document.getElementById(id);
