//! Programs written with the Python client (`tests/python`).

use std::path::Path;

use anyhow::{Result, ensure};
use e2e::clients;
use tokio::process::Command;

fn python() -> Result<Command> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/client.py");
    let mut command = Command::new(clients::tool("python/bin/python")?);
    command.arg(script);
    Ok(command)
}

async fn check(name: &str) -> Result<()> {
    let server = clients::server().await?;
    let told = clients::run(&server, python()?.arg(server.kubeconfig()).arg(name)).await?;
    ensure!(told.starts_with(&format!("ok {name} with 37.")), "{told}");
    Ok(())
}

#[tokio::test]
async fn generated_classes() -> Result<()> {
    check("typed").await
}

#[tokio::test]
async fn pages_and_selectors() -> Result<()> {
    check("lists").await
}

#[tokio::test]
async fn watches() -> Result<()> {
    check("watches").await
}

#[tokio::test]
async fn an_informer() -> Result<()> {
    check("informer").await
}

#[tokio::test]
async fn apply_without_classes() -> Result<()> {
    check("dynamic").await
}

#[tokio::test]
async fn failures_say_why() -> Result<()> {
    check("errors").await
}

#[tokio::test]
async fn no_check_is_left_out() -> Result<()> {
    let listed = String::from_utf8(python()?.arg("list").output().await?.stdout)?;
    ensure!(listed.lines().eq(["dynamic", "errors", "informer", "lists", "typed", "watches"]), "{listed}");
    Ok(())
}
