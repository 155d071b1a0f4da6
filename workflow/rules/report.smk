# The gallery: one page that shows what paper_figures/ holds, of every suite. And the pages of
# this suite that `snakemake --report` puts into one file.


localrules:
    gallery,
    pages,


rule gallery:
    input:
        bundles=list(NOTEBOOKS.values()),
        citation="CITATION.cff",
    output:
        "paper_figures/README.md",
    log:
        f"{RESULTS}/logs/gallery.log",
    conda:
        "../../environment.yml"
    message:
        "Gallery: {output}"
    shell:
        "PYTHONPATH=notebooks python -m figlib.gallery paper_figures > {log} 2>&1"


rule pages:
    input:
        bundles=list(NOTEBOOKS.values()),
        runs=rules.collect.output.runs,
        code="notebooks/figlib/pages.py",
    output:
        [
            page(
                name,
                f"{kind.capitalize()}s",
                f"../../paper_figures/{name}_{SUITE}/caption.md",
            )
            for name, kind in SHOWN.items()
        ],
        runs=page("runs", "Runs", "../report/runs.rst"),
    log:
        f"{RESULTS}/logs/pages.log",
    conda:
        "../../environment.yml"
    params:
        suite=SUITE,
        names=list(SHOWN),
        folder=subpath(output.runs, parent=True),
    message:
        "Pages of the report"
    shell:
        "PYTHONPATH=notebooks python -m figlib.pages paper_figures"
        " {params.suite} {input.runs} {params.folder} {params.names} > {log} 2>&1"
