# The gallery: one page that shows what paper_figures/ holds, of every suite.


localrules:
    gallery,


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
