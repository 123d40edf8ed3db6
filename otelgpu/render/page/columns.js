// Columns as the page has them: base64 of little-endian numbers, behind the letter of their type.

const COLUMN_TYPES = { B: Uint8Array, H: Uint16Array, I: Uint32Array, d: Float64Array };

function decoded(text) {
  const binary = atob(text.slice(1));
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return new COLUMN_TYPES[text[0]](bytes.buffer);
}
