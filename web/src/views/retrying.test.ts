import { expect, test } from "vitest";
import { PageChangedError, retrying } from "./retrying";

const wait = () => Promise.resolve();

test("waits for a server that is down", async () => {
  let tries = 0;
  const load = () => (++tries < 5 ? Promise.reject(new Error("Failed to fetch")) : Promise.resolve("view"));
  const isReachable = () => Promise.resolve(tries >= 4);
  expect(await retrying(load, { isReachable, wait })()).toBe("view");
  expect(tries).toBe(5);
});

test("asks for a reload if the server responds without the part", async () => {
  const load = () => Promise.reject(new Error("404"));
  const isReachable = () => Promise.resolve(true);
  await expect(retrying(load, { isReachable, wait })()).rejects.toThrow(PageChangedError);
});
