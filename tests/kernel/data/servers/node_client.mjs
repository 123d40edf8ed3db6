// fetch: node_client.mjs FIRST TOGETHER EACH URL. Asks URL/job/N, EACH requests one after the other TOGETHER times.
const [first, together, each] = process.argv.slice(2, 5).map(Number);
const url = process.argv[5];

async function ask(connection) {
  for (let i = 0; i < each; i += 1) {
    const number = first + connection * each + i;
    const response = await fetch(`${url}/job/${number}`);
    if (Number(await response.text()) !== number) throw new Error(`not the answer of ${number}`);
  }
}

await Promise.all([...Array(together).keys()].map(ask));
