// Starts `pstranspile lsp` for programs (*.ir) and job files, and stops it with the editor.
const { workspace } = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");

let client;

exports.activate = async function activate() {
  const command = workspace.getConfiguration("pstranspile").get("command");
  const server = { command, args: ["lsp"], transport: TransportKind.stdio };
  const jobs = ["**/job.toml", "**/*.job.toml", "**/job.json", "**/*.job.json"];
  client = new LanguageClient("pstranspile", "pstranspile", server, {
    documentSelector: [
      { scheme: "file", language: "pstranspile-ir" },
      ...jobs.map((pattern) => ({ scheme: "file", pattern })),
    ],
    synchronize: { fileEvents: jobs.map((pattern) => workspace.createFileSystemWatcher(pattern)) },
  });
  await client.start();
};

exports.deactivate = function deactivate() {
  return client?.stop();
};
