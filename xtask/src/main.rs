//! Developer tool: generate, tidy, bench and fixtures.

mod bench;
#[cfg(test)]
mod laws;
mod schema;
mod tidy;

/// That of pintle: what is measured in this process must be what it costs in that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = args.split_first().map_or(("help", &[] as &[String]), |(c, rest)| (c.as_str(), rest));
    match command {
        "bench" => bench::run(rest),
        "schema" => schema::run(rest),
        "tidy" => tidy::run(),
        _ => {
            println!(
                "cargo xtask COMMAND\n\n  bench [--quick] [--only-chain|--only-load|--only-names|--only-network|--only-pods|--only-streams|--only-watches]   figures of this machine beside the budget; of one part\n  schema --facts DIR   write the schema table of the built-in kinds\n  tidy                 check what no compiler checks"
            );
            Ok(())
        }
    }
}
