#!/usr/bin/env python3
"""Joins modules: plan lines `target.py <- a.py b.py` (paths under pstranspile/), each with `doc: ...` lines after it.

The docstring follows the plan line, indented, until the next plan line. `!` after the target means: move only.
"""
import ast, re, sys, subprocess, pathlib, builtins
ROOT=pathlib.Path('.'); PKG='pstranspile'
PLAN=pathlib.Path(sys.argv[1])

def modname(p):
    n='.'.join(pathlib.Path(PKG,p).with_suffix('').parts)
    return n.removesuffix('.__init__')

plans=[]
for line in PLAN.read_text().splitlines():
    if line.startswith('#'): continue
    if not line.strip():
        if plans and plans[-1][2]: plans[-1][2].append('')
        continue
    if line.startswith(' '): plans[-1][2].append(line.strip()); continue
    t,_,s=line.partition('<-'); plans.append((t.strip(),s.split(),[]))

def top_bindings(tree):
    out={}
    for n in tree.body:
        if isinstance(n,(ast.FunctionDef,ast.ClassDef,ast.AsyncFunctionDef)): out[n.name]=n
        elif isinstance(n,(ast.Assign,ast.AnnAssign,ast.AugAssign)):
            for t in (n.targets if isinstance(n,ast.Assign) else [n.target]):
                for x in ast.walk(t):
                    if isinstance(x,ast.Name): out[x.id]=n
        elif isinstance(n,(ast.For,ast.Try,ast.If,ast.With)):
            if isinstance(n,ast.If) and 'TYPE_CHECKING' in ast.dump(n.test): continue
            for x in ast.walk(n):
                if isinstance(x,ast.Name) and isinstance(x.ctx,ast.Store): out.setdefault(x.id,n)
    return out

class File:
    def __init__(self,path):
        self.path=pathlib.Path(PKG,path); self.mod=modname(path); self.text=self.path.read_text()
        self.tree=ast.parse(self.text); self.is_init=self.path.name=='__init__.py'

def offsets(text):
    o=[0]
    for l in text.splitlines(True): o.append(o[-1]+len(l.encode()))
    return o

def replace_spans(text,spans):
    """spans: (start_line,start_col,end_line,end_col,new) in ast coordinates (bytes)."""
    o=offsets(text); b=text.encode()
    for sl,sc,el,ec,new in sorted(spans,reverse=True):
        b=b[:o[sl-1]+sc]+new.encode()+b[o[el-1]+ec:]
    return b.decode()

def rename(text,mapping):
    if not mapping: return text
    tree=ast.parse(text); spans=[]
    for n in ast.walk(tree):
        if isinstance(n,ast.Name) and n.id in mapping:
            spans.append((n.lineno,n.col_offset,n.end_lineno,n.end_col_offset,mapping[n.id]))
        elif isinstance(n,(ast.FunctionDef,ast.ClassDef)) and n.name in mapping and n in tree.body:
            line=text.splitlines()[n.lineno-1]
            i=len(line[:line.index(n.name)].encode())
            spans.append((n.lineno,i,n.lineno,i+len(n.name),mapping[n.name]))
        elif isinstance(n,ast.Global):
            print('WARN global',ast.unparse(n))
    return replace_spans(text,spans)

ALL=[*ROOT.glob('pstranspile/**/*.py'),*ROOT.glob('tests/**/*.py'),*ROOT.glob('benchmarks/**/*.py'),*ROOT.glob('docs/**/*.py'),*ROOT.glob('examples/**/*.py'),*ROOT.glob('*.py'),*ROOT.glob('tests/**/*.pyi'),*ROOT.glob('typings/**/*.pyi')]
STATE={'all':ALL}
PROSE=[p for g in ('*.md','docs/**/*','tests/**/*','benchmarks/**/*','pyproject.toml','Makefile','mkdocs.yml','grammar/*','pstranspile/**/*.txt','pstranspile/**/*.toml','pstranspile/**/*.lark','pstranspile/**/*.css','.github/**/*') for p in ROOT.glob(g) if p.is_file() and p.suffix in ('.md','.toml','.txt','.yml','.py','.lark','.json','','.css')]

def stmt(mod,names):
    return f"from {mod} import "+', '.join(n if a is None else f"{n} as {a}" for n,a in names)

def rewrite_importers(olds,target,renames,skip):
    """olds: module names that become `target`."""
    tparent,_,tlast=target.rpartition('.')
    pat=re.compile(r'|'.join([re.escape(o)+r'\b' for o in olds]+[re.escape(o.rpartition('.')[0])+r' import' for o in olds]))
    for p in list(ROOT.glob('pstranspile/**/*.py'))+[q for q in ALL if not str(q).startswith('pstranspile')]:
        if not p.exists() or p in skip: continue
        try: text=p.read_text()
        except UnicodeDecodeError: continue
        if not pat.search(text) : continue
        try: tree=ast.parse(text)
        except SyntaxError: continue
        spans=[]; attr_fix={}
        for n in ast.walk(tree):
            if isinstance(n,ast.ImportFrom) and n.level==0 and n.module:
                out=[]; changed=False; keep=[]
                if n.module in olds:
                    out.append(stmt(target,[(renames.get((n.module,a.name),a.name), a.asname or (a.name if (n.module,a.name) in renames else None)) for a in n.names])); changed=True
                else:
                    for a in n.names:
                        full=n.module+'.'+a.name
                        if full in olds and full!=target:
                            asn=a.asname or a.name
                            out.append(stmt(tparent,[(tlast,asn if asn!=tlast else (tlast if a.asname else None))])); changed=True
                        else: keep.append((a.name,a.asname))
                    if changed and keep: out.insert(0,stmt(n.module,keep))
                if changed:
                    seg=ast.get_source_segment(text,n)
                    if '#' in seg: print('COMMENT in import',p,n.lineno)
                    new=('\n'+' '*n.col_offset).join(out)
                    if new!=seg: spans.append((n.lineno,n.col_offset,n.end_lineno,n.end_col_offset,new))
            elif isinstance(n,ast.Import):
                for a in n.names:
                    if a.name in olds and a.name!=target: print('PLAIN import',p,n.lineno,a.name)
        if spans: p.write_text(replace_spans(text,spans))

def strings(olds,target):
    t=target; short=t.removeprefix('pstranspile.')
    tpath=[f for f in (t.replace('.','/')+'.py',t.replace('.','/')+'/__init__.py') if pathlib.Path(f).exists()][0]
    seen=set()
    for p in PROSE+list(ROOT.glob('pstranspile/**/*.py')):
        if p in seen or not p.exists() or 'CHANGELOG' in p.name or p.stat().st_size>2_000_000: continue
        seen.add(p)
        try: s=old=p.read_text()
        except UnicodeDecodeError: continue
        for o in olds:
            if o==t: continue
            sh=o.removeprefix('pstranspile.')
            s=re.sub(r'(?<![\w./])'+re.escape(o)+r'(?![\w]|\.[a-z_]+["\'/.:]\w*\.py)',t,s)
            s=re.sub(r'(?<=["\'])'+re.escape(sh)+r'(?=[:])',short,s)
            for path in (o.replace('.','/')+'.py',o.replace('.','/')+'/__init__.py'):
                s=s.replace(path,tpath)
                pp=path.removeprefix('pstranspile/')
                s=re.sub(r'(?<![\w/])'+re.escape(pp),tpath.removeprefix('pstranspile/'),s)
        if s!=old:
            if p.suffix=='.py':
                try: ast.parse(s)
                except SyntaxError: print('BROKEN by strings',p); continue
            p.write_text(s)
    names=ROOT/'pstranspile/fluid/names.txt'
    if t.startswith('pstranspile.fluid.'):
        s=names.read_text()
        for o in olds:
            if o!=t and o.startswith(('pstranspile.fluid.graph.','pstranspile.fluid.running.')): s=re.sub('(?<==)'+re.escape(o.removeprefix('pstranspile.fluid.'))+r'(?=\s)',t.removeprefix('pstranspile.fluid.'),s)
        names.write_text(s)

def join(target,sources,doc):
    tpath=pathlib.Path(PKG,target); tmod=modname(target)
    files=[File(s) for s in sources]; mods={f.mod:f for f in files}
    if tpath.exists() and tmod not in mods and not tpath.name=='__init__.py': sys.exit(f'target exists: {target}')
    # order: imported first
    def imports_of(f):
        out=set()
        for n in f.tree.body:
            nodes=[n]
            for n in nodes:
                if isinstance(n,ast.ImportFrom) and n.module:
                    if n.module in mods: out.add(n.module)
                    for a in n.names:
                        if f'{n.module}.{a.name}' in mods: out.add(f'{n.module}.{a.name}')
        return out-{f.mod}
    order=[]
    def visit(f,way=()):
        if f in order: return
        assert f not in way,('circle',f.mod)
        for m in mods:
            if m in imports_of(f): visit(mods[m],(*way,f))
        order.append(f)
    for f in files: visit(f)
    files=order
    imports=[]; typing=[]; bodies=[]; bound={}; renames={}; dunder_all=[]; seen_text={}
    # names bound
    tops={f.mod:top_bindings(f.tree) for f in files}
    reals={}
    for f in files:
        for n,node in tops[f.mod].items(): reals.setdefault(n,[]).append((f,ast.get_source_segment(f.text,node)))
    imported={}
    per={}
    for f in files:
        imp=[];typ=[];inner={}
        drop=set()
        for n in f.tree.body:
            if isinstance(n,(ast.Import,ast.ImportFrom)): imp.append(n); drop.add(n)
            elif isinstance(n,ast.If) and ast.unparse(n.test)=='TYPE_CHECKING' and all(isinstance(x,(ast.Import,ast.ImportFrom)) for x in n.body): typ+=n.body; drop.add(n)
        per[f]=(imp,typ,drop)
    for f in files:
        m={}
        # clashes with defs of other files
        for name in tops[f.mod]:
            others=[(g,t) for g,t in reals[name] if g is not f]
            mine=[t for g,t in reals[name] if g is f][0]
            if not others or name in ('__all__','__getattr__','_get','_','_module'): continue
            if files.index(f)<max(files.index(g) for g,_ in others) and all(t==mine for _,t in others):
                continue
            first=[g for g,_ in reals[name]][0]
            if all(t==mine for _,t in others): continue
            if f is first: continue
            if name=='__getattr__': print('CLASH __getattr__',f.mod); continue
            new=f"{name}_{f.path.stem if not f.is_init else f.path.parent.name}"
            print(f'RENAME {f.mod}.{name} -> {new}'); m[name]=new; renames[(f.mod,name)]=new
        renames_local={}
        # imports
        for kind,nodes in (('i',per[f][0]),('t',per[f][1])):
            for n in nodes:
                if isinstance(n,ast.Import):
                    for a in n.names:
                        (imports if kind=='i' else typing).append((f,None,a.name,a.asname))
                else:
                    if n.module=='__future__': continue
                    for a in n.names:
                        full=f'{n.module}.{a.name}'
                        if n.module in mods and full not in mods:
                            g=n.module
                            real=renames.get((g,a.name),a.name)
                            if (a.asname or a.name)!=real:
                                m[a.asname or a.name]=real
                            if a.name not in tops[g]: print('NOTE re-export through',g,a.name,'by',f.mod)
                        elif full in mods:
                            inner[a.asname or a.name]=full
                            per[f][2].add(('mod',a.asname or a.name,full))
                        else: (imports if kind=='i' else typing).append((f,n.module,a.name,a.asname))
        per[f]=(*per[f],m)
    # import clashes: a name imported in one, defined or imported otherwise in another
    byname={}
    for f,mod,name,asn in imports+typing:
        b=asn or (name if mod else name.split('.')[0]); byname.setdefault(b,set()).add((mod,name,asn))
    for f in files:
        m=per[f][3]
        for f2,mod,name,asn in imports+typing:
            if f2 is not f: continue
            b=asn or name
            clash=[g for g in files if g is not f and b in tops[g.mod] and renames.get((g.mod,b),b)==b]
            other=[x for x in byname.get(b,()) if x!=(mod,name,asn) and mod]
            if clash or (other and sorted(map(str,byname[b]))[0]!=str((mod,name,asn))):
                new=f"{b}_of_{(mod or '').rpartition('.')[2]}"; print(f'IMPORT CLASH {b} in {f.mod} from {mod} -> {new} (with {[g.mod for g in clash]} {other})')
                m[b]=new
    def rendered(lst):
        out=[]
        for f,mod,name,asn in lst:
            b=asn or name; m=per[f][3]
            if mod and b in m: asn=m[b]
            s=f"from {mod} import {name}"+(f" as {asn}" if asn else '') if mod else f"import {name}"+(f" as {asn}" if asn else '')
            if s not in out: out.append(s)
        return out
    imps=rendered(imports); typs=[t for t in rendered(typing) if t not in imps]
    body_parts=[]
    emitted=set()
    lastidx={}
    getattrs=False
    def is_getattr(n):
        return (isinstance(n,ast.Assign) and ast.unparse(n.targets[0]) in ('__getattr__','_get') and 'names_of_fluid' in ast.unparse(n)) or (isinstance(n,ast.FunctionDef) and n.name=='__getattr__' and '_get(name)' in ast.unparse(n))
    for i,f in enumerate(files):
        for n in f.tree.body:
            seg=ast.get_source_segment(f.text,n); lastidx[seg]=i
            if is_getattr(n): per[f][2].add(n); getattrs=True
    for i,f in enumerate(files):
        lines=f.text.splitlines(True); drop=per[f][2]; m=per[f][3]
        first=f.tree.body[0]
        kill=set()
        if isinstance(first,ast.Expr) and isinstance(first.value,ast.Constant): kill|=set(range(first.lineno,first.end_lineno+1))
        for n in f.tree.body:
            if n in drop: kill|=set(range(n.lineno,n.end_lineno+1))
            seg=ast.get_source_segment(f.text,n)
            named=[x for x in top_bindings(ast.Module([n],[]))]
            if named and all(x in reals and len(reals[x])>1 for x in named) and i<lastidx[seg]:
                j=f.tree.body.index(n); 
                kill|=set(range(n.lineno,n.end_lineno+1)); 
                if j+1<len(f.tree.body) and isinstance(f.tree.body[j+1],ast.Expr) and isinstance(f.tree.body[j+1].value,ast.Constant):
                    k=f.tree.body[j+1]; kill|=set(range(k.lineno,k.end_lineno+1))
            if isinstance(n,ast.Assign) and ast.unparse(n.targets[0])=='__all__':
                dunder_all.extend(ast.literal_eval(n.value)); kill|=set(range(n.lineno,n.end_lineno+1))
        text=''.join('\n' if k+1 in kill else l for k,l in enumerate(lines))
        # inner function-level imports of sources, module aliases
        t=ast.parse(text); spans=[]
        for x in ast.walk(t):
            if isinstance(x,ast.ImportFrom) and x.module and (x.module in mods):
                print('INNER import',f.mod,x.lineno,ast.unparse(x)); spans.append((x.lineno,x.col_offset,x.end_lineno,x.end_col_offset,'pass'))
            if isinstance(x,ast.Attribute) and isinstance(x.value,ast.Name):
                for d in drop:
                    if isinstance(d,tuple) and d[1]==x.value.id:
                        spans.append((x.lineno,x.col_offset,x.end_lineno,x.end_col_offset,renames.get((d[2],x.attr),x.attr)))
        text=replace_spans(text,spans)
        for d in drop:
            if isinstance(d,tuple) and re.search(r'\b'+d[1]+r'\b',re.sub(r'"""[\s\S]*?"""','',text)): print('MODULE NAME',d[1],'perhaps still used in',f.mod)
        text=rename(text,m)
        body_parts.append(text.strip('\n'))
    docs='\n'.join(doc).strip()
    if not docs: 
        docs=ast.get_docstring(files[-1].tree); print('NO DOC for',target)
    out='"""'+docs+('\n' if '\n' in docs else '')+'"""\n\nfrom __future__ import annotations\n\n'+'\n'.join(imps)+'\n\n'
    if typs: out+='if TYPE_CHECKING:\n'+''.join('    '+s+'\n' for s in typs)+'\n'
    if dunder_all: out+='__all__ = '+repr(sorted(set(dunder_all)))+'\n\n'
    out+='\n\n\n'.join(b for b in body_parts if b)+'\n'
    if getattrs:
        out+='\n\n__getattr__ = names_of_fluid(__name__, globals())\n'
        out=out.replace('from __future__ import annotations\n','from __future__ import annotations\n\nfrom pstranspile.fluid.missing import names_of_fluid\n',1)
    try: ast.parse(out)
    except SyntaxError as e: pathlib.Path('./broken.py').write_text(out); sys.exit(f'{target}: {e}')
    olds=set(mods)
    tpath.parent.mkdir(parents=True,exist_ok=True)
    # a package that becomes a module: remove its init first
    for f in files:
        if f.path!=tpath: subprocess.run(['git','mv','-k','-f',str(f.path),str(tpath)]) if not tpath.exists() else subprocess.run(['git','rm','-qf',str(f.path)])
    tpath.parent.mkdir(parents=True,exist_ok=True)
    for f in files:
        if f.path!=tpath and f.path.exists(): f.path.unlink()
        d=f.path.parent
        if d!=tpath.parent and d.exists() and not any(x for x in d.iterdir() if x.name!='__pycache__'):
            subprocess.run(['rm','-r',str(d)])
    tpath.write_text(out); subprocess.run(['git','add',str(tpath)])
    rewrite_importers(olds,tmod,renames,{tpath})
    strings(olds,tmod)
    print(f'{target}: {len(files)} files, {out.count(chr(10))} lines')
    return tpath

for t,s,d in plans: 
    print('==',t); join(t,s,d)
subprocess.run(['.venv/bin/ruff','check','--fix','-q','--output-format','concise','.']); subprocess.run(['.venv/bin/ruff','format','-q','.'])
