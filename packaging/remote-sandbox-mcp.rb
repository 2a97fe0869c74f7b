# A formula for a tap of your own. `make packages` writes it to dist with the version and the hash of the source archive.
class RemoteSandboxMcp < Formula
  desc "SSH machines, containers and local sandboxes for coding agents"
  homepage "https://example.org/remote-sandbox-mcp"
  url "https://example.org/remote-sandbox-mcp/releases/remote_sandbox_mcp-@VERSION@.tar.gz"
  sha256 "@SHA256@"
  license "MIT"

  depends_on "python@3.13"

  def install
    system "python3.13", "-m", "venv", libexec
    pip = [libexec/"bin/python", "-m", "pip", "install", "--only-binary", ":all:", "--no-deps"]
    system(*pip, "--require-hashes", "--requirement", "requirements.txt")
    system libexec/"bin/python", "-m", "pip", "install", "--no-deps", "--no-build-isolation", "."
    bin.install_symlink libexec/"bin/remote-sandbox-mcp"
    man1.install_symlink libexec/"share/man/man1/remote-sandbox-mcp.1"
    bash_completion.install_symlink libexec/"share/bash-completion/completions/remote-sandbox-mcp"
    zsh_completion.install_symlink libexec/"share/zsh/site-functions/_remote_sandbox_mcp"
    fish_completion.install_symlink libexec/"share/fish/vendor_completions.d/remote-sandbox-mcp.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/remote-sandbox-mcp --version")
  end
end
