//! Developer tool: generate, tidy, bench and fixtures.

mod schema;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = args.split_first().map_or(("help", &[] as &[String]), |(c, rest)| (c.as_str(), rest));
    match command {
        "schema" => schema::run(rest),
        _ => {
            println!("cargo xtask COMMAND\n\n  schema --facts DIR   write the schema table of the built-in kinds");
            Ok(())
        }
    }
}
