//! What PTX text declares.

/// The sizes in bytes of the parameters of entry `name`.
pub fn entry_params(ptx: &str, name: &str) -> Option<Vec<usize>> {
    let at = ptx.match_indices(".entry").find(|(at, _)| {
        let rest = ptx[at + 6..].trim_start();
        rest.strip_prefix(name)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })?;
    let list = ptx[at.0..].split_once('(')?.1.split_once(')')?.0;
    list.split(',')
        .filter(|param| !param.trim().is_empty())
        .map(|param| {
            let bits = param.split_whitespace().find_map(|word| {
                word.strip_prefix(".u")
                    .or(word.strip_prefix(".s"))
                    .or(word.strip_prefix(".b"))
                    .or(word.strip_prefix(".f"))?
                    .parse::<usize>()
                    .ok()
            })?;
            Some(bits / 8)
        })
        .collect()
}
