// The JavaScript SDK for Service Bus against a Twinbus broker: messaging, sessions, rules and
// administration, as its users would do it. Prints what passed; exits with 1 if anything did not.
//
// Started without a connection string it starts a broker of its own in a temporary folder, then
// itself again with that broker's certificate trusted: Node reads NODE_EXTRA_CA_CERTS only once.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(import.meta.url);

async function withBroker() {
  const folder = mkdtempSync(path.join(tmpdir(), "twinbus-interop-"));
  const twinbus =
    process.env.TWINBUS ?? path.resolve(path.dirname(here), "../../.venv/bin/twinbus");
  const broker = spawn(
    twinbus,
    ["broker", "--name", "interop", "--port", "0", "--admin-port", "0", "--data", folder],
    { stdio: ["ignore", "pipe", "inherit"] },
  );
  try {
    const line = await firstLine(broker);
    const child = spawn(process.execPath, [here], {
      stdio: "inherit",
      env: {
        ...process.env,
        TWINBUS_CONNECTION_STRING: line.slice(line.indexOf(": ") + 2),
        NODE_EXTRA_CA_CERTS: path.join(folder, "certificate.pem"),
      },
    });
    process.exitCode = await new Promise((resolve) => {
      child.on("exit", (code) => resolve(code ?? 1));
    });
  } finally {
    broker.kill("SIGINT");
    await new Promise((resolve) => broker.on("exit", resolve));
    rmSync(folder, { recursive: true, force: true });
  }
}

function firstLine(broker) {
  return new Promise((resolve, reject) => {
    createInterface({ input: broker.stdout }).once("line", resolve);
    broker.once("exit", (code) => reject(new Error(`the broker ended with ${code}`)));
    broker.once("error", reject);
  });
}

async function runAll(connectionString) {
  const sdk = await import("@azure/service-bus");
  const admin = new sdk.ServiceBusAdministrationClient(connectionString);
  const client = new sdk.ServiceBusClient(connectionString, {
    retryOptions: { maxRetries: 0, timeoutInMs: 20_000 },
  });
  let failed = 0;
  for (const [name, test] of Object.entries(tests)) {
    const started = Date.now();
    try {
      await within(30_000, test({ sdk, admin, client, connectionString }));
      console.log(`passed  ${name} (${Date.now() - started} ms)`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED  ${name}\n${error?.stack ?? error}`);
    }
  }
  const started = Date.now();
  await client.close();
  console.log(`closed  in ${Date.now() - started} ms`);
  console.log(`${Object.keys(tests).length - failed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}

function within(ms, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${ms} ms`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function listed(iterator) {
  const all = [];
  for await (const item of iterator) all.push(item);
  return all;
}

async function receive(receiver, count, ms = 10_000) {
  const found = [];
  const end = Date.now() + ms;
  while (found.length < count && Date.now() < end) {
    const left = Math.max(100, end - Date.now());
    found.push(
      ...(await receiver.receiveMessages(count - found.length, { maxWaitTimeInMs: left })),
    );
  }
  return found;
}

const bodies = (messages) => messages.map((message) => message.body);

const tests = {
  async "a message comes as it was sent"({ admin, client }) {
    await admin.createQueue("plain");
    const sender = client.createSender("plain");
    const sent = {
      body: { nested: [1, "two", null], text: "grüß" },
      messageId: "m",
      correlationId: "c",
      contentType: "application/json",
      subject: "s",
      to: "t",
      replyTo: "r",
      timeToLive: 3_600_000,
      applicationProperties: { number: 7, text: "x", truth: true },
    };
    await sender.sendMessages(sent);
    const receiver = client.createReceiver("plain");
    const [message] = await receive(receiver, 1);
    for (const [key, value] of Object.entries(sent)) {
      assert.deepEqual(message[key], value, key);
    }
    assert.equal(message.sequenceNumber.toString(), "1");
    assert.ok(message.lockedUntilUtc > new Date());
    await receiver.completeMessage(message);
    assert.deepEqual(await receiver.peekMessages(10), []);
    await receiver.close();
    await sender.close();
  },

  async "messages without an id get one"({ client }) {
    const sender = client.createSender("plain");
    await sender.sendMessages([{ body: "a" }, { body: "b" }]);
    const receiver = client.createReceiver("plain", { receiveMode: "receiveAndDelete" });
    const found = await receive(receiver, 2);
    assert.equal(new Set(found.map((message) => message.messageId)).size, 2);
    assert.ok(found.every((message) => message.messageId));
    await receiver.close();
  },

  async "a batch arrives whole and in order"({ client }) {
    const sender = client.createSender("plain");
    const batch = await sender.createMessageBatch();
    assert.equal(batch.maxSizeInBytes, 262_144);
    for (let n = 0; n < 100; n += 1) {
      assert.ok(batch.tryAddMessage({ body: `${n}-${"x".repeat(1000)}`, messageId: `${n}` }));
    }
    await sender.sendMessages(batch);
    const receiver = client.createReceiver("plain");
    const found = await receive(receiver, 100);
    assert.deepEqual(
      found.map((message) => message.messageId),
      Array.from({ length: 100 }, (_, n) => `${n}`),
    );
    await Promise.all(found.map((message) => receiver.completeMessage(message)));
    assert.deepEqual(await receiver.peekMessages(10), []);
    await receiver.close();
  },

  async "every way of settling"({ admin, client }) {
    await admin.createQueue("settle", { maxDeliveryCount: 2 });
    const sender = client.createSender("settle");
    await sender.sendMessages(
      ["complete", "abandon", "defer", "bury", "renew"].map((body) => ({ body })),
    );
    const receiver = client.createReceiver("settle");
    const found = await receive(receiver, 5);
    const [complete, abandon, defer, bury, renew] = found;
    await receiver.completeMessage(complete);
    await receiver.abandonMessage(abandon, { tried: 1 });
    await receiver.deferMessage(defer, { why: "later" });
    await receiver.deadLetterMessage(bury, {
      deadLetterReason: "why",
      deadLetterErrorDescription: "because",
      extra: "kept",
    });
    const until = await receiver.renewMessageLock(renew);
    assert.ok(until > new Date());
    const [again] = await receive(receiver, 1);
    assert.deepEqual([again.body, again.deliveryCount], ["abandon", 1]);
    assert.equal(again.applicationProperties.tried, 1);
    await receiver.abandonMessage(again); // the second time: dead-lettered
    const [deferred] = await receiver.receiveDeferredMessages(defer.sequenceNumber);
    assert.equal(deferred.applicationProperties.why, "later");
    await receiver.completeMessage(deferred);
    await receiver.completeMessage(renew);
    await assert.rejects(receiver.completeMessage(renew));
    const graves = client.createReceiver("settle", { subQueueType: "deadLetter" });
    const dead = await receive(graves, 2);
    assert.deepEqual(
      dead.map((each) => [each.body, each.deadLetterReason]),
      [
        ["bury", "why"],
        ["abandon", "MaxDeliveryCountExceeded"],
      ],
    );
    assert.equal(dead[0].deadLetterErrorDescription, "because");
    assert.equal(dead[0].applicationProperties.extra, "kept");
    for (const each of dead) await graves.completeMessage(each);
    assert.deepEqual(await receiver.peekMessages(10), []);
    await graves.close();
    await receiver.close();
  },

  async "a lost lock is told as such"({ sdk, admin, client }) {
    await admin.createQueue("late", { lockDuration: "PT5S" });
    await client.createSender("late").sendMessages({ body: "x" });
    const receiver = client.createReceiver("late", { maxAutoLockRenewalDurationInMs: 0 });
    const [message] = await receive(receiver, 1);
    const [again] = await receive(receiver, 1, 9_000);
    assert.equal(again.deliveryCount, 1);
    await assert.rejects(receiver.completeMessage(message), (error) => {
      assert.ok(sdk.isServiceBusError(error));
      assert.equal(error.code, "MessageLockLost");
      return true;
    });
    await receiver.completeMessage(again);
    await receiver.close();
  },

  async "schedule, cancel and peek"({ admin, client }) {
    await admin.createQueue("schedule");
    const sender = client.createSender("schedule");
    const due = new Date(Date.now() + 3_000);
    const numbers = await sender.scheduleMessages([{ body: "a" }, { body: "b" }], due);
    assert.equal(numbers.length, 2);
    const receiver = client.createReceiver("schedule");
    const peeked = await receiver.peekMessages(10);
    assert.deepEqual(
      peeked.map((message) => [message.body, message.state]),
      [
        ["a", "scheduled"],
        ["b", "scheduled"],
      ],
    );
    await sender.cancelScheduledMessages(numbers[0]);
    const found = await receive(receiver, 1);
    assert.deepEqual(bodies(found), ["b"]);
    assert.ok(Date.now() >= due.getTime() - 50);
    await receiver.completeMessage(found[0]);
    await receiver.close();
  },

  async "sessions"({ sdk, admin, client }) {
    await admin.createQueue("sessions", { requiresSession: true });
    const sender = client.createSender("sessions");
    await sender.sendMessages(
      [0, 1, 2, 3].map((n) => ({ body: `${n}`, sessionId: `s${n % 2}` })),
    );
    const one = await client.acceptSession("sessions", "s1");
    assert.equal(one.sessionId, "s1");
    assert.ok(one.sessionLockedUntilUtc > new Date());
    await one.setSessionState({ at: 3 });
    assert.deepEqual(await one.getSessionState(), { at: 3 });
    assert.ok((await one.renewSessionLock()) > new Date());
    await assert.rejects(client.acceptSession("sessions", "s1"), (error) => {
      assert.equal(error.code, "SessionCannotBeLocked");
      return true;
    });
    const found = await receive(one, 2);
    assert.deepEqual(bodies(found), ["1", "3"]);
    for (const message of found) await one.completeMessage(message);
    const next = await client.acceptNextSession("sessions");
    assert.equal(next.sessionId, "s0");
    const [first] = await receive(next, 1);
    await next.deferMessage(first);
    const [deferred] = await next.receiveDeferredMessages(first.sequenceNumber);
    await next.completeMessage(deferred);
    await next.close();
    await one.close();
    await assert.rejects(sender.sendMessages({ body: "no session" }), sdk.isServiceBusError);
    await sender.close();
  },

  async "an empty queue is given up in time, and a close drains"({ admin, client }) {
    await admin.createQueue("empty");
    const receiver = client.createReceiver("empty");
    for (let n = 0; n < 3; n += 1) {
      const started = Date.now();
      assert.deepEqual(await receiver.receiveMessages(10, { maxWaitTimeInMs: 300 }), []);
      const taken = Date.now() - started;
      assert.ok(taken < 1_500, `draining took ${taken} ms`);
    }
    await client.createSender("empty").sendMessages([{ body: "1" }, { body: "2" }]);
    const found = await receive(receiver, 2);
    assert.deepEqual(bodies(found), ["1", "2"]);
    for (const message of found) await receiver.completeMessage(message);
    const started = Date.now();
    await receiver.close();
    assert.ok(Date.now() - started < 2_000, "closing took too long");
  },

  async "a subscription by callback takes all and stops"({ admin, client }) {
    await admin.createQueue("stream");
    await client
      .createSender("stream")
      .sendMessages(Array.from({ length: 50 }, (_, n) => ({ body: n })));
    const receiver = client.createReceiver("stream");
    const seen = [];
    await new Promise((resolve, reject) => {
      receiver.subscribe(
        {
          async processMessage(message) {
            seen.push(message.body);
            if (seen.length === 50) resolve();
          },
          async processError(args) {
            reject(args.error);
          },
        },
        { maxConcurrentCalls: 5 },
      );
    });
    await receiver.close();
    assert.deepEqual(
      seen.sort((a, b) => a - b),
      Array.from({ length: 50 }, (_, n) => n),
    );
    const left = client.createReceiver("stream");
    assert.deepEqual(await left.peekMessages(10), []);
    await left.close();
  },

  async "too large and not found are errors, not silence"({ client }) {
    const sender = client.createSender("plain");
    await assert.rejects(sender.sendMessages({ body: "x".repeat(300_000) }), (error) => {
      assert.equal(error.code, "MessageSizeExceeded");
      return true;
    });
    await sender.sendMessages({ body: "goes on" });
    const receiver = client.createReceiver("plain", { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(receiver, 1)), ["goes on"]);
    await receiver.close();
    await assert.rejects(client.createSender("nowhere").sendMessages({ body: 1 }), (error) => {
      assert.equal(error.code, "MessagingEntityNotFound");
      return true;
    });
  },

  async "rules by the rule manager"({ sdk, admin, client }) {
    await admin.createTopic("ruled");
    await admin.createSubscription("ruled", "s");
    const manager = client.createRuleManager("ruled", "s");
    assert.deepEqual(
      (await listed(manager.listRules())).map((rule) => rule.name),
      ["$Default"],
    );
    await manager.deleteRule("$Default");
    await manager.createRule("sql", { sqlExpression: "n > 5" }, { sqlExpression: "SET big = 1" });
    const wanted = {
      subject: "red",
      correlationId: "c",
      applicationProperties: { size: 3, kind: "x" },
    };
    await manager.createRule("correlation", wanted);
    await assert.rejects(manager.createRule("sql", { sqlExpression: "1=1" }), sdk.isServiceBusError);
    await assert.rejects(manager.createRule("bad", { sqlExpression: "n >" }));
    const rules = Object.fromEntries(
      (await listed(manager.listRules())).map((rule) => [rule.name, rule]),
    );
    assert.deepEqual(Object.keys(rules).sort(), ["correlation", "sql"]);
    assert.equal(rules.sql.filter.sqlExpression, "n > 5");
    assert.equal(rules.sql.action.sqlExpression, "SET big = 1");
    assert.equal(rules.correlation.filter.subject, "red");
    assert.deepEqual({ ...rules.correlation.filter.applicationProperties }, { size: 3, kind: "x" });
    await client.createSender("ruled").sendMessages([
      { body: "large", applicationProperties: { n: 6 } },
      { body: "small", applicationProperties: { n: 5 } },
      {
        body: "red",
        subject: "red",
        correlationId: "c",
        applicationProperties: { size: 3, kind: "x" },
      },
    ]);
    const receiver = client.createReceiver("ruled", "s", { receiveMode: "receiveAndDelete" });
    const found = await receive(receiver, 2);
    assert.deepEqual(bodies(found), ["large", "red"]);
    assert.equal(found[0].applicationProperties.big, 1);
    await receiver.close();
  },

  async "queues by the administration client"({ admin }) {
    const made = await admin.createQueue("managed/one", {
      lockDuration: "PT30S",
      maxDeliveryCount: 3,
      requiresDuplicateDetection: true,
      duplicateDetectionHistoryTimeWindow: "PT5M",
      defaultMessageTimeToLive: "P2D",
      userMetadata: "<mine & yours>",
      authorizationRules: [
        { claimType: "SharedAccessKey", keyName: "reader", accessRights: ["Listen"] },
      ],
    });
    assert.equal(made.name, "managed/one");
    const queue = await admin.getQueue("managed/one");
    assert.equal(queue.lockDuration, "PT30S");
    assert.equal(queue.requiresDuplicateDetection, true);
    assert.equal(queue.defaultMessageTimeToLive, "P2D");
    assert.equal(queue.userMetadata, "<mine & yours>");
    assert.deepEqual(queue.authorizationRules[0].accessRights, ["Listen"]);
    await admin.updateQueue({ ...queue, maxDeliveryCount: 9, forwardTo: "plain" });
    const changed = await admin.getQueue("managed/one");
    assert.equal(changed.maxDeliveryCount, 9);
    assert.ok(changed.forwardTo.endsWith("/plain"), changed.forwardTo);
    assert.deepEqual(changed.authorizationRules, queue.authorizationRules);
    assert.equal(await admin.queueExists("managed/one"), true);
    assert.equal(await admin.queueExists("managed/two"), false);
    await assert.rejects(admin.createQueue("managed/one"), { code: "MessageEntityAlreadyExistsError" });
    await assert.rejects(admin.getQueue("managed/two"), { code: "MessageEntityNotFoundError" });
    await assert.rejects(admin.createQueue("bad name"), /cannot be an entity's path/);
    const runtime = await admin.getQueueRuntimeProperties("empty");
    assert.equal(runtime.activeMessageCount, 0);
    assert.ok(runtime.createdAt <= runtime.accessedAt);
    await admin.deleteQueue("managed/one");
    assert.equal(await admin.queueExists("managed/one"), false);
  },

  async "lists go over pages"({ admin }) {
    const names = Array.from({ length: 105 }, (_, n) => `page-${String(n).padStart(3, "0")}`);
    for (const name of names) await admin.createQueue(name);
    const mine = (all) => all.map((each) => each.name).filter((name) => name.startsWith("page-"));
    assert.deepEqual(mine(await listed(admin.listQueues())), names);
    assert.deepEqual(mine(await listed(admin.listQueuesRuntimeProperties())), names);
    const sizes = [];
    for await (const page of admin.listQueues().byPage({ maxPageSize: 40 })) {
      sizes.push(page.length);
    }
    assert.deepEqual(sizes.slice(0, 2), [40, 40]);
  },

  async "topics, subscriptions and rules by the administration client"({ admin, client }) {
    await admin.createTopic("managed-topic", { defaultMessageTimeToLive: "PT1H" });
    const made = await admin.createSubscription("managed-topic", "s", {
      requiresSession: true,
      defaultRuleOptions: { name: "first", filter: { subject: "red" } },
    });
    assert.deepEqual([made.topicName, made.subscriptionName], ["managed-topic", "s"]);
    const first = await admin.getRule("managed-topic", "s", "first");
    assert.equal(first.filter.subject, "red");
    const when = new Date("2026-01-02T03:04:05.000Z");
    await admin.createRule(
      "managed-topic",
      "s",
      "sql",
      { sqlExpression: "a = @a AND b > @b", sqlParameters: { "@a": 3, "@b": when } },
      { sqlExpression: "SET c = @c", sqlParameters: { "@c": "x" } },
    );
    const rule = await admin.getRule("managed-topic", "s", "sql");
    assert.equal(rule.filter.sqlParameters["@a"], 3);
    assert.deepEqual(rule.filter.sqlParameters["@b"], when);
    assert.equal(rule.action.sqlParameters["@c"], "x");
    await admin.updateRule("managed-topic", "s", { ...rule, filter: { sqlExpression: "a = 4" } });
    assert.equal((await admin.getRule("managed-topic", "s", "sql")).filter.sqlExpression, "a = 4");
    assert.deepEqual(
      (await listed(admin.listRules("managed-topic", "s"))).map((each) => each.name),
      ["first", "sql"],
    );
    const subscription = await admin.getSubscription("managed-topic", "s");
    await admin.updateSubscription({ ...subscription, maxDeliveryCount: 7 });
    assert.equal((await admin.getSubscription("managed-topic", "s")).maxDeliveryCount, 7);
    await client
      .createSender("managed-topic")
      .sendMessages({ body: "x", subject: "red", sessionId: "one" });
    const runtime = await admin.getSubscriptionRuntimeProperties("managed-topic", "s");
    assert.equal(runtime.activeMessageCount, 1);
    const topic = await admin.getTopicRuntimeProperties("managed-topic");
    assert.equal(topic.subscriptionCount, 1);
    assert.ok(topic.sizeInBytes > 0);
    await admin.updateTopic({ ...(await admin.getTopic("managed-topic")), userMetadata: "m" });
    assert.equal((await admin.getTopic("managed-topic")).userMetadata, "m");
    assert.equal((await listed(admin.listTopics())).length >= 2, true);
    assert.equal((await listed(admin.listSubscriptions("managed-topic"))).length, 1);
    await admin.deleteRule("managed-topic", "s", "sql");
    await admin.deleteSubscription("managed-topic", "s");
    assert.equal(await admin.subscriptionExists("managed-topic", "s"), false);
    await admin.deleteTopic("managed-topic");
    assert.equal(await admin.topicExists("managed-topic"), false);
  },

  async "the namespace"({ admin }) {
    const found = await admin.getNamespaceProperties();
    assert.equal(found.name, "interop");
    assert.equal(found.messagingSku, "Standard");
  },

  async "a wrong key opens nothing"({ sdk, connectionString }) {
    const wrong = connectionString.replace("SharedAccessKey=", "SharedAccessKey=V1JPTkc");
    const admin = new sdk.ServiceBusAdministrationClient(wrong);
    await assert.rejects(admin.createQueue("never"), { statusCode: 401 });
    const client = new sdk.ServiceBusClient(wrong, { retryOptions: { maxRetries: 0 } });
    await assert.rejects(client.createSender("plain").sendMessages({ body: 1 }), (error) => {
      assert.equal(error.code, "UnauthorizedAccess");
      return true;
    });
    await client.close();
  },
};

if (process.env.TWINBUS_CONNECTION_STRING) {
  await runAll(process.env.TWINBUS_CONNECTION_STRING);
} else {
  await withBroker();
}
