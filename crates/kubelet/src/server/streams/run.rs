//! `POST /run/{namespace}/{pod}[/{uid}]/{container}?cmd=…`: a command whose whole output is the answer.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use transport::Response;

use super::{Refused, Whose};
use crate::server::Server;

/// Runs it, however long it takes within the runtime's own limit.
pub async fn answer(server: &Server, whose: &Whose, query: &[(String, String)]) -> Response {
    match run(server, whose, query).await {
        Ok(output) => {
            let mut response = Response::new(transport::full(output));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(refused) => refused.response(),
    }
}

async fn run(server: &Server, whose: &Whose, query: &[(String, String)]) -> Result<Vec<u8>, Refused> {
    let view = super::find(server, whose)?;
    let id = super::container(&view, whose)?;
    let command = query.iter().find(|(key, _)| key == "cmd").map(|(_, value)| value.as_str()).unwrap_or_default();
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    let output = server.runtime.exec(&id, &words, Duration::ZERO).await?;
    if output.exit_code != 0 {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = format!("command '{command}' exited with {}: {said}", output.exit_code);
        return Err(Refused::new(StatusCode::INTERNAL_SERVER_ERROR, why));
    }
    let mut both = output.stdout;
    both.extend_from_slice(&output.stderr);
    Ok(both)
}
