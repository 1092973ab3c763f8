//! Test images, made from the distribution's packages: no registry outside is ever asked.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use host::image::{Image, Layer, Settings};

/// nginx with what it links against.
const NGINX: &[&str] = &[
    "nginx",
    "nginx-common",
    "libc6",
    "libcrypt1",
    "libpcre2-8-0",
    "libssl3",
    "zlib1g",
    "libgcc-s1",
    "base-files",
    "netbase",
];

/// Where unpacked packages are kept between runs.
fn cache() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/images")
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if output.status.success() {
        return Ok(());
    }
    bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim())
}

/// Unpacks packages into a folder, once.
fn unpack(name: &str, packages: &[&str], finish: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let root = cache().join(name);
    let done = cache().join(format!("{name}.done"));
    if done.exists() {
        return Ok(root);
    }
    let debs = cache().join(format!("{name}.debs"));
    for folder in [&root, &debs] {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    run(Command::new("apt-get")
        .args(["download", "-qq", "-o", "APT::Sandbox::User=root"])
        .args(packages)
        .current_dir(&debs))?;
    for deb in fs::read_dir(&debs)? {
        run(Command::new("dpkg-deb").arg("-x").arg(deb?.path()).arg(&root))?;
    }
    for noise in ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian"] {
        let _ = fs::remove_dir_all(root.join(noise));
    }
    finish(&root)?;
    fs::write(done, "")?;
    Ok(root)
}

/// A static busybox with every applet as a link, named `name`.
pub fn busybox(name: &str) -> Result<Image> {
    let root = unpack("busybox", &["busybox-static"], |root| {
        let bin = root.join("bin");
        let list = Command::new(bin.join("busybox")).arg("--list").output().context("busybox --list")?;
        for applet in String::from_utf8(list.stdout)?.lines().filter(|a| *a != "busybox") {
            let link = bin.join(applet);
            if !link.exists() {
                symlink("busybox", link)?;
            }
        }
        for folder in ["tmp", "etc", "var"] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")?;
        fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
        Ok(())
    })?;
    let settings = Settings {
        command: vec!["sh".into()],
        env: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()],
        ..Settings::default()
    };
    Ok(Image::build(name, &settings, vec![Layer::from_folder(&root)?])?)
}

/// The program `binary` with the libraries it loads, started with `arguments`, as an image named `name`.
/// Symbols are left out: nobody looks for them there.
pub fn program(name: &str, binary: &Path, arguments: &[&str]) -> Result<Image> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755))?;
    let file = binary.file_name().context("a program's file")?;
    let inside = root.path().join("bin").join(file);
    fs::create_dir_all(root.path().join("bin"))?;
    run(Command::new("strip").arg("-o").arg(&inside).arg(binary))?;
    let loaded = Command::new("ldd").arg(binary).output().context("ldd")?;
    let loaded = String::from_utf8(loaded.stdout)?;
    for library in loaded.split_whitespace().filter(|word| word.starts_with('/')) {
        let inside = root.path().join(library.trim_start_matches('/'));
        fs::create_dir_all(inside.parent().context("a library's folder")?)?;
        fs::copy(library, inside)?;
    }
    let mut entrypoint = vec![format!("/bin/{}", file.to_string_lossy())];
    entrypoint.extend(arguments.iter().map(|a| (*a).to_owned()));
    let settings = Settings { entrypoint, ..Settings::default() };
    Ok(Image::build(name, &settings, vec![Layer::from_folder(root.path())?])?)
}

/// A shell and the resolver of glibc (`getent`), named `name`.
pub fn glibc(name: &str) -> Result<Image> {
    let root =
        unpack("glibc", &["busybox-static", "libc-bin", "libc6", "libgcc-s1", "base-files", "netbase"], |root| {
            // Where programs are one folder, these links stand for the other three.
            for (link, target) in [("sh", "busybox"), ("cat", "busybox"), ("seq", "busybox"), ("sleep", "busybox")] {
                let link = root.join("bin").join(link);
                if !link.exists() {
                    symlink(target, link)?;
                }
            }
            fs::create_dir_all(root.join("tmp"))?;
            fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n")?;
            fs::write(root.join("etc/group"), "root:x:0:\n")?;
            fs::write(root.join("etc/nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n")?;
            Ok(())
        })?;
    let settings = Settings {
        command: vec!["sh".into()],
        env: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()],
        ..Settings::default()
    };
    Ok(Image::build(name, &settings, vec![Layer::from_folder(&root)?])?)
}

/// nginx that serves its own welcome page on port 80 and logs to its standard output.
pub fn nginx(name: &str) -> Result<Image> {
    let root = unpack("nginx", NGINX, |root| {
        let site = "server {\n\tlisten 80 default_server;\n\troot /usr/share/nginx/html;\n\
            \tlocation = /hostname { default_type text/plain; return 200 \"$hostname\\n\"; }\n}\n";
        fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/sh\n")?;
        fs::write(root.join("etc/group"), "root:x:0:\nwww-data:x:33:\n")?;
        fs::create_dir_all(root.join("etc/nginx/sites-enabled"))?;
        fs::write(root.join("etc/nginx/sites-available/default"), site)?;
        let enabled = root.join("etc/nginx/sites-enabled/default");
        if !enabled.exists() && fs::symlink_metadata(&enabled).is_err() {
            symlink("/etc/nginx/sites-available/default", enabled)?;
        }
        for folder in ["run", "tmp", "var/log/nginx", "var/lib/nginx"] {
            fs::create_dir_all(root.join(folder))?;
        }
        for (log, device) in [("access.log", "/dev/stdout"), ("error.log", "/dev/stderr")] {
            let path = root.join("var/log/nginx").join(log);
            let _ = fs::remove_file(&path);
            symlink(device, path)?;
        }
        Ok(())
    })?;
    let settings = Settings {
        entrypoint: vec!["/usr/sbin/nginx".into()],
        command: vec!["-g".into(), "daemon off;".into()],
        env: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()],
        ..Settings::default()
    };
    Ok(Image::build(name, &settings, vec![Layer::from_folder(&root)?])?)
}
